/* On a machine of eight processors that is made up. Prints how many threads each of two callers has that want two. Then
   callers of eight threads come one after the other and leave, each running loops meanwhile: prints how many threads the
   first has with one, two and four callers, and with one again; then how many it has beside a call that wants one, and how
   many that call has. */
#define _GNU_SOURCE
#include <sched.h>

enum { THREADS = 8, CALLERS = 4, SETTLE_US = 200000 };

static int made_up_getaffinity(pid_t thread, size_t bytes, cpu_set_t *set) {
  (void)thread, (void)bytes;
  CPU_ZERO(set);
  for (int i = 0; i < THREADS; i++) CPU_SET(i, set);
  return 0;
}

#define sched_getaffinity made_up_getaffinity
#define CONTROL_GROUPS "/dev/null"
#define OWN_GROUPS "/dev/null"
#include "pool.c"

static _Atomic int wanted[CALLERS], had[CALLERS]; /* wanted: 0 for no call, -1 for the end */

static int do_nothing(int task, SlipstreamEnv *env, void *data) {
  (void)task, (void)env, (void)data;
  return 0;
}

static void *call(void *argument) {
  size_t number = (size_t)argument;
  for (int threads; (threads = wanted[number]) >= 0; usleep(1000)) {
    if (!threads) continue;
    slipstream_pool_begin(threads);
    while (wanted[number] == threads) {
      slipstream_pool_launch(do_nothing, NULL, 0);
      had[number] = own_call.threads;
      usleep(1000);
    }
    slipstream_pool_end();
  }
  return NULL;
}

static void print(int number) {
  usleep(SETTLE_US);
  printf("%d ", had[number]);
}

int main(void) {
  pthread_t callers[CALLERS];
  slipstream_pool_retain();
  for (size_t i = 0; i < CALLERS; i++) pthread_create(&callers[i], NULL, call, (void *)i);
  wanted[0] = wanted[1] = 2;
  print(0);
  print(1);
  wanted[1] = 0;
  wanted[0] = THREADS;
  print(0);
  wanted[1] = THREADS;
  print(0);
  wanted[2] = wanted[3] = THREADS;
  print(0);
  wanted[1] = wanted[2] = wanted[3] = 0;
  print(0);
  wanted[1] = 1;
  print(0);
  print(1);
  for (int i = 0; i < CALLERS; i++) wanted[i] = -1;
  for (int i = 0; i < CALLERS; i++) pthread_join(callers[i], NULL);
  slipstream_pool_release();
}
