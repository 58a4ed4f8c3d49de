/* Prints how many processors a process may use that runs on eight, in control groups that are made up. */
#define _GNU_SOURCE
#include <sched.h>

static int made_up_getaffinity(pid_t thread, size_t bytes, cpu_set_t *set) {
  (void)thread, (void)bytes;
  CPU_ZERO(set);
  for (int i = 0; i < 8; i++) CPU_SET(i, set);
  return 0;
}

#define sched_getaffinity made_up_getaffinity
#include "pool.c"

int main(void) {
  printf("%d\n", processors());
  return 0;
}
