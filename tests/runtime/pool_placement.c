/* The pool on a machine of sixteen processors that is made up: calls begin, run loops and end at random, their
   callers on random processors. Prints how many processors had to do for two threads, of a caller or a worker that helps. */
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
  (void)thread, (void)bytes, (void)set;
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
  int running[PROCESSORS] = {0}, shared = 0;
  slipstream_pool_retain();
  grow(PROCESSORS);
  for (int step = 0; step < STEPS; step++) {
    int at = rand_r(&seed) % PROCESSORS, what = rand_r(&seed) % 3;
    if (!running[at] && pool.used < PROCESSORS) { /* else it would have to wait */
      processor = at;
      begin(&calls[at], 1 + rand_r(&seed) % PROCESSORS);
      running[at] = 1;
    } else if (running[at] && what) {
      follow_share(&calls[at]);
    } else if (running[at]) {
      end(&calls[at]);
      running[at] = 0;
    }
    shared += shared_processors();
  }
  printf("%d\n", shared);
  for (int i = 0; i < PROCESSORS; i++) {
    if (running[i]) end(&calls[i]);
  }
  slipstream_pool_release();
}
