/* Callers come and go, loops of all sizes: every task has to run exactly once, before and after a fork. */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

static int threads, rounds;

typedef struct {
  int runs[512];
  int count;
} Seen;

static int note(int task, SlipstreamEnv *env, void *data) {
  Seen *seen = data;
  seen->runs[task]++;
  if (task == 0) seen->count = env->num_task;
  return task == env->num_task - 1 && env->num_task > 3 ? 7 : 0;
}

/* A loop inside of a task: as one task, and the outer loop goes on as if it had not been. */
static int note_twice(int task, SlipstreamEnv *env, void *data) {
  Seen inner;
  memset(&inner, 0, sizeof inner);
  slipstream_pool_launch(note, &inner, 0);
  if (inner.count != 1 || inner.runs[0] != 1 || inner.runs[1]) return 8;
  return note(task, env, data);
}

/* What a call runs; on its caller's thread or on another. */
static void run_loops(void *argument) {
  unsigned *seed = argument;
  for (int loop = 0; loop < 20; loop++) {
    Seen seen;
    memset(&seen, 0, sizeof seen);
    int tasks = rand_r(seed) % (4 * threads + 2), limit = rand_r(seed) % (4 * threads + 1);
    slipstream_pool_limit(limit);
    int result = slipstream_pool_launch(loop % 4 ? note : note_twice, &seen, tasks);
    int wrong = seen.count < 1 || seen.count > 4 * threads || (limit && seen.count > limit) || (tasks && seen.count > tasks);
    for (int i = 0; i < 512; i++) wrong |= seen.runs[i] != (i < seen.count);
    wrong |= result != (seen.count > 3 ? 7 : 0);
    if (wrong) {
      fprintf(stderr, "wrong: %d tasks of %d threads, result %d\n", seen.count, threads, result);
      _exit(1);
    }
  }
  char *memory = slipstream_pool_alloc(rand_r(seed) % 5 ? 1000 + rand_r(seed) % 100000 : 0);
  memory[0] = 1;
  slipstream_pool_free(memory);
}

static void *call(void *argument) {
  unsigned seed = (unsigned)(size_t)argument;
  for (int round = 0; round < rounds; round++) {
    if (rand_r(&seed) % 3) {
      unsigned before = seed;
      slipstream_pool_call(threads, run_loops, &seed);
      if (seed == before) {
        fprintf(stderr, "a call was not run\n");
        _exit(1);
      }
    } else {
      slipstream_pool_begin(threads);
      run_loops(&seed);
      slipstream_pool_call(threads, run_loops, &seed); /* inside of a call: a part of it */
      slipstream_pool_end();
    }
    if (rand_r(&seed) % 8 == 0) usleep(200);
  }
  return NULL;
}

/* The kernel goes on listing one that was joined for a while. */
static int threads_of_process(void) {
  int count = 0;
  for (int look = 0; look < 100 && count != 1; look++) {
    usleep(20000);
    count = -2;
    DIR *tasks = opendir("/proc/self/task");
    while (readdir(tasks)) count++;
    closedir(tasks);
  }
  return count;
}

static void run(int callers) {
  pthread_t threads_of[64];
  for (int i = 0; i < callers; i++) pthread_create(&threads_of[i], NULL, call, (void *)(size_t)(i + 1));
  for (int i = 0; i < callers; i++) pthread_join(threads_of[i], NULL);
}

int main(int count, char **arguments) {
  threads = atoi(arguments[1]);
  rounds = atoi(arguments[2]);
  (void)count;
  slipstream_pool_retain();
  run(1);
  run(2);
  run(9);
  fflush(stdout);
#ifdef __SANITIZE_THREAD__
  return 0; /* which does not survive a fork */
#endif
  pid_t child = fork();
  if (child == 0) {
    run(3);
    slipstream_pool_release();
    _exit(slipstream_pool_workers() != 0 || threads_of_process() != 1);
  }
  int status;
  waitpid(child, &status, 0);
  run(2);
  for (int look = 0; look < 100 && slipstream_pool_workers() > slipstream_pool_sleeping(); look++) usleep(20000);
  printf("%d workers, %d asleep\n", slipstream_pool_workers(), slipstream_pool_sleeping());
  int awake = slipstream_pool_workers() - slipstream_pool_sleeping();
  slipstream_pool_release();
  return status || awake || slipstream_pool_workers() || threads_of_process() != 1;
}
