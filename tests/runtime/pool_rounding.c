/* Prints 1 if a thread of the pool rounds as usual though the one that started it does not, 0 if not. */
#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "pool.h"

static pthread_t caller;
static atomic_int seen = -1;

static int look(int task, SlipstreamEnv *env, void *data) {
  (void)task, (void)env, (void)data;
  if (!pthread_equal(pthread_self(), caller)) {
    atomic_store(&seen, fegetround() == FE_TONEAREST);
  }
  for (int wait = 0; atomic_load(&seen) < 0 && wait < 5000; wait++) usleep(1000); /* for the other to begin */
  return 0;
}

int main(void) {
  caller = pthread_self();
  fesetround(FE_UPWARD);
  slipstream_pool_retain();
  slipstream_pool_begin(2);
  slipstream_pool_launch(look, NULL, 0);
  slipstream_pool_end();
  slipstream_pool_release();
  printf("%d\n", atomic_load(&seen));
  return 0;
}
