/* Four callers whose calls take the less time the more threads they get, back to back and then after pauses: prints how
   many threads of eight calls got in the last third of each. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "pool.h"

enum { THREADS = 8, CALLERS = 4, CALLS = 90, LAST = 30, WORK_US = 12000, PAUSE_US = 20000 };

static int pause_us;
static _Atomic int granted;

static void *call(void *unused) {
  for (int i = 0; i < CALLS; i++) {
    int got = slipstream_pool_begin(THREADS);
    usleep(WORK_US / (1 + got / 4.0)); /* barriers and the like do not get shorter */
    slipstream_pool_end();
    if (i >= CALLS - LAST) granted += got;
    if (pause_us) usleep(pause_us);
  }
  return unused;
}

static double mean_threads(int pause) {
  pthread_t callers[CALLERS];
  pause_us = pause;
  granted = 0;
  for (int i = 0; i < CALLERS; i++) pthread_create(&callers[i], NULL, call, NULL);
  for (int i = 0; i < CALLERS; i++) pthread_join(callers[i], NULL);
  return (double)granted / (CALLERS * LAST);
}

int main(void) {
  slipstream_pool_retain();
  double back_to_back = mean_threads(0), after_pauses = mean_threads(PAUSE_US);
  printf("%f %f\n", back_to_back, after_pauses);
  slipstream_pool_release();
}
