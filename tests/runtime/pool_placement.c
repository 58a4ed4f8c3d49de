/* The pool on a machine of sixteen processors that is made up: calls of callers and stand-ins begin, run loops, are
   moved to other processors and end at random. Prints how many processors had to do for two threads, of a caller or a
   worker that helps. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROCESSORS = 16, STEPS = 2000 };

static __thread int processor;

static int made_up_getcpu(void) { return processor; }

static int made_up_getaffinity(pid_t thread, size_t bytes, cpu_set_t *set) {
  (void)thread, (void)bytes;
  CPU_ZERO(set);
  for (int i = 0; i < PROCESSORS; i++) CPU_SET(i, set);
  return 0;
}

static int made_up_setaffinity(pid_t thread, size_t bytes, const cpu_set_t *set) {
  (void)bytes;
  while (!thread && !CPU_ISSET(processor, set)) processor = (processor + 1) % PROCESSORS; /* this thread */
  return 0;
}

#define sched_getcpu made_up_getcpu
#define sched_getaffinity made_up_getaffinity
#define sched_setaffinity made_up_setaffinity
#include "pool.c"

static Call calls[PROCESSORS];

static int shared_processors(void) {
  int threads[PROCESSORS] = {0}, shared = 0;
  for (int i = 0; i < PROCESSORS; i++) threads[i] += pool.callers[pool.group_of[i]];
  for (int i = 0; i + 1 < PROCESSORS; i++) {
    for (int k = 0; k < PROCESSORS; k++) threads[k] += workers[i].busy && CPU_ISSET(k, &pool.group[workers[i].group]);
  }
  for (int i = 0; i < PROCESSORS; i++) shared += threads[i] > 1;
  return shared;
}

int main(void) {
  unsigned seed = 1;
  int running[PROCESSORS] = {0}, on[PROCESSORS], has_caller[PROCESSORS] = {0}, shared = 0;
  slipstream_pool_retain();
  grow(PROCESSORS);
  for (int step = 0; step < STEPS; step++) {
    int at = rand_r(&seed) % PROCESSORS, what = rand_r(&seed) % 3, to = rand_r(&seed) % PROCESSORS;
    if (!running[at] && !has_caller[to] && pool.used < PROCESSORS) { /* else it would have to wait */
      processor = to;
      if (rand_r(&seed) % 2) settle(); /* a stand-in */
      on[at] = processor;
      begin(&calls[at], 1 + rand_r(&seed) % PROCESSORS);
      running[at] = has_caller[on[at]] = 1;
    } else if (running[at] && what) {
      has_caller[on[at]] = 0;
      if (!has_caller[to]) on[at] = to; /* the kernel moves it */
      has_caller[on[at]] = 1;
      processor = on[at];
      follow_share(&calls[at]);
    } else if (running[at]) {
      end(&calls[at]);
      running[at] = has_caller[on[at]] = 0;
    }
    shared += shared_processors();
  }
  printf("%d\n", shared);
  for (int i = 0; i < PROCESSORS; i++) {
    if (running[i]) end(&calls[i]);
  }
  slipstream_pool_release();
}
