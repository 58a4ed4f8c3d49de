/* Callers of eight threads come one after the other and then leave, each running loops meanwhile: prints how many threads
   the first has with one, two and four callers, and with one again; then how many it has beside a call that wants one, and
   how many that call has. */
#include "pool.c"

enum { THREADS = 8, CALLERS = 4, SETTLE_US = 200000 };

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
