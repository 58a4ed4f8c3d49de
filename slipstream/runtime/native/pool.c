/* A thread pool for compiled models: placed, shared, asleep when idle.

   A parallel loop is split into as many tasks as its call has threads. The caller, when done with its own, runs those
   that workers have not begun: one that wakes up late costs no more than its share. While other programs want the
   processors there are a few tasks for each thread: it takes its own from the front, the caller what is left from the
   back, and a worker that shares its processor does less.

   Placement. The allowed processors are split into as many groups as the pool has threads, by physical core. Callers
   are wherever the scheduler put them; each worker is confined to a group of its own. A worker that helps a call is in a
   group where no call has its caller: a group is left to its caller, and its worker takes another's place, also when
   the kernel moves the caller in the middle of a call. Without that the kernel wakes a worker on its waker's processor,
   and both take turns there for the whole call.

   Sharing. The pool has as many threads as all calls at a time have asked for, but no more than there are
   processors, unless a single call does. All running calls together use no more than that. They are divided equally
   among the calls that there are, and anew when a call comes or has gone: a running call gives threads up, or takes
   more, before its next loop. So a new call waits for the next loop of a running one, unless there are more calls
   than threads. Fewer threads lose less time at barriers: side by side more calls are answered than one after the
   other.

   Stand-ins. Calls that have to wait for threads are run by threads of the pool, one after the other, while their
   callers sleep. More calls are answered so than if callers took turns on the processors. A stand-in is confined to a
   group where nothing else of the pool runs, so that no two of its threads take turns.

   Sleeping. After a call a worker looks for new work for about twice the usual gap between calls, if that is short,
   and then waits in the kernel. As it begins a call wakes its sleeping helpers as a tree: the caller some, each of
   them some more. Between the operators of a call it spins. In a call of few threads whose caller has often had to
   wait for workers lately it sleeps: other programs want the processors, and a thread that sleeps gets one sooner
   than one that spins. */
#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST_THREADS 512
#define MOST_BLOCKS 16
#define CROWDED_TASKS 4        /* for each thread, while others want the processors */
#define IN_CALL_SPIN_NS 500000 /* between the operators of a call; longer gaps are slept through */
#define CROWDED_SPIN_NS 5000   /* the same while others want the processors */
#define LATE_NS 20000          /* and half as long again as the caller: a worker that late did not have its processor */
#define LATE_SCORE 16          /* what such a wait adds to the score, of which a loop without one takes 1 */
#define CROWDED_SCORE 48       /* above it the processors are crowded: over one loop in seventeen, for a while */
#define MOST_SCORE 96
#define MOST_SLEEPERS 4        /* waking more threads for every operator takes longer than it saves */
#define LONGEST_GAP_NS 100000  /* between calls: what is worth looking for work that long. Python needs half of it */
#define RETURN_NS 200000       /* after a call its caller often comes back: until then threads and place are left to it */
#define WAKES 4                /* sleepers that a caller, and each of those it wakes, wakes */
#define STACK_BYTES (1 << 20)
#define ALIGNMENT 64
#ifndef CONTROL_GROUPS
#define CONTROL_GROUPS "/sys/fs/cgroup"
#define OWN_GROUPS "/proc/self/cgroup"
#endif
#define LONGEST_PATH 4096

#if defined(__x86_64__) || defined(__i386__)
#define relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define relax() __asm__ volatile("isb" ::: "memory")
#else
#define relax() ((void)0)
#endif

enum { IDLE, PENDING, RUNNING, ASLEEP, STOP };

typedef struct Worker {
  _Alignas(128) _Atomic int32_t state; /* a futex word */
  SlipstreamTask task;
  void *data;
  SlipstreamEnv env;
  int result;
  _Atomic uint64_t range; /* tasks that nobody has begun: the first in the upper half, the end in the lower */
  _Atomic int in_call, may_sleep;
  _Atomic int tid;
  _Alignas(128) pthread_t thread;
  int started, busy, group;
  struct Worker *to_wake[WAKES]; /* set while it is asleep */
} Worker;

typedef struct Call {
  int wanted, threads, limit, depth; /* threads: 0 while it waits */
  _Atomic int share, group;          /* how many threads it should have; where its caller was last seen, or -1 */
  int dealt, done;
  void (*body)(void *); /* what a stand-in has to run, until one does */
  void *data;
  pthread_cond_t changed; /* it may begin or, run by a stand-in, is done */
  struct Call *next;
  Worker *helpers[MOST_THREADS];
} Call;

static struct {
  pthread_mutex_t lock;
  int users, had_users, capacity, used; /* models, ever any; threads in all; those that calls have */
  int groups, callers[MOST_THREADS];    /* callers: of running calls, in each group. One group has no worker */
  int64_t left_at[MOST_THREADS];        /* when a call last ended whose caller was in the group */
  cpu_set_t allowed, group[MOST_THREADS];
  _Atomic int group_of[CPU_SETSIZE];
  Call *first; /* all calls in order of arrival; those that wait are the last */
  int64_t ended_at, usual_gap;
  _Atomic int64_t divide_at; /* threads that a call left are divided then; INT64_MAX: none was left */
  pthread_t stand_in[MOST_THREADS];
  int stand_ins, idle_stand_ins, closing; /* closing: stand-ins are to end */
  pthread_cond_t granted;                 /* a call for a stand-in may begin */
  unsigned calls;
} pool;

static Worker workers[MOST_THREADS];
static _Atomic int implicit_threads = 1;
static _Atomic int64_t idle_spin_ns;
static _Atomic int late_score;
static __thread Call own_call, *current;
static __thread int is_worker, in_loop; /* in_loop: this caller runs tasks of a loop */
static __thread int looks_for_call;     /* a stand-in that takes the next call without being woken */

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void futex_wait(_Atomic int32_t *word, int32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic int32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

static int is_crowded(void) { return atomic_load_explicit(&late_score, memory_order_relaxed) > CROWDED_SCORE; }

/* ---- Workers ---- */

static void wait_for_work(Worker *self) {
  int64_t began = 0;
  int was_in_call = 1;
  for (int spins = 0;; spins++) {
    int32_t state = atomic_load_explicit(&self->state, memory_order_acquire);
    if (state == PENDING || state == STOP) return;
    relax();
    if (spins % 32) continue;
    int64_t now = now_ns();
    int in_call = atomic_load_explicit(&self->in_call, memory_order_relaxed);
    if (!began || in_call != was_in_call) began = now; /* the end of a call is not that of this worker's last task */
    was_in_call = in_call;
    int64_t most = !in_call                         ? idle_spin_ns
                   : self->may_sleep && is_crowded() ? CROWDED_SPIN_NS
                                                     : IN_CALL_SPIN_NS;
    if (now - began < most) continue;
    int32_t idle = IDLE;
    if (!atomic_compare_exchange_strong(&self->state, &idle, ASLEEP)) continue;
    while (atomic_load(&self->state) == ASLEEP) futex_wait(&self->state, ASLEEP);
    for (int i = 0; i < WAKES; i++) {
      if (self->to_wake[i]) futex_wake(&self->to_wake[i]->state);
      self->to_wake[i] = NULL;
    }
    began = 0;
  }
}

/* End the sleep of a call's helpers. Those that are awake are not disturbed. */
static void wake_helpers(Worker **helpers, int count) {
  Worker *asleep[MOST_THREADS];
  int sleeping = 0;
  for (int i = 0; i < count; i++) {
    if (atomic_load(&helpers[i]->state) == ASLEEP) asleep[sleeping++] = helpers[i];
  }
  for (int i = sleeping - 1; i >= 0; i--) {
    for (int k = 0, next = WAKES * (i + 1); k < WAKES; k++, next++) {
      asleep[i]->to_wake[k] = next < sleeping ? asleep[next] : NULL;
    }
    atomic_store(&asleep[i]->state, IDLE);
  }
  for (int i = 0; i < WAKES && i < sleeping; i++) futex_wake(&asleep[i]->state);
}

/* A task of the range, from its front or its back; -1 if none is left. */
static int take_task(_Atomic uint64_t *range, int from_back) {
  uint64_t now = atomic_load(range);
  for (;;) {
    uint32_t first = (uint32_t)(now >> 32), end = (uint32_t)now;
    if (first >= end) return -1;
    uint64_t rest = from_back ? now - 1 : now + (1ULL << 32);
    if (atomic_compare_exchange_weak(range, &now, rest)) return (int)(from_back ? end - 1 : first);
  }
}

static int run_tasks(_Atomic uint64_t *range, int from_back, SlipstreamTask task, SlipstreamEnv *env, void *data) {
  int result = 0;
  for (int next; (next = take_task(range, from_back)) >= 0;) {
    int failed = task(next, env, data);
    if (failed) result = failed;
  }
  return result;
}

/* A thread begins with the rounding and the treatment of denormals of the one that started it, which any caller may
   have changed: the same call would give other bits, by who computed what. */
static void compute_as_usual(void) {
#if defined(__x86_64__)
  __asm__ volatile("fninit");
  __builtin_ia32_ldmxcsr(0x1f80);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
#endif
}

static void *work(void *argument) {
  Worker *self = argument;
  compute_as_usual();
  is_worker = 1;
  pthread_setname_np(pthread_self(), "slipstream");
  atomic_store(&self->tid, (int)syscall(SYS_gettid));
  for (;;) {
    wait_for_work(self);
    int32_t pending = PENDING;
    if (atomic_compare_exchange_strong(&self->state, &pending, RUNNING)) {
      self->result = run_tasks(&self->range, 0, self->task, &self->env, self->data);
      atomic_store_explicit(&self->state, IDLE, memory_order_release);
    } else if (pending == STOP) {
      return NULL;
    }
  }
}

static void place(Worker *worker, int group) {
  worker->group = group;
  if (!worker->started) return;
  /* The processors of a container can change under us: then the worker stays where it may. */
  sched_setaffinity(atomic_load(&worker->tid), sizeof(cpu_set_t), &pool.group[group]);
}

static int start_thread(pthread_t *thread, void *(*run)(void *), void *argument, size_t stack) {
  pthread_attr_t attributes;
  sigset_t all, before;
  pthread_attr_init(&attributes);
  if (stack) pthread_attr_setstacksize(&attributes, stack);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
  int failed = pthread_create(thread, &attributes, run, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return !failed;
}

static int start(Worker *worker) {
  atomic_store(&worker->state, IDLE);
  atomic_store(&worker->tid, 0);
  if (!start_thread(&worker->thread, work, worker, STACK_BYTES)) return 0;
  worker->started = 1;
  while (!atomic_load(&worker->tid)) sched_yield();
  place(worker, worker->group);
  return 1;
}

/* With the lock, which is let go while stand-ins end. */
static void stop_threads(void) {
  pool.closing++;
  pthread_cond_broadcast(&pool.granted);
  while (pool.stand_ins) {
    pthread_t last = pool.stand_in[--pool.stand_ins];
    pthread_mutex_unlock(&pool.lock);
    pthread_join(last, NULL);
    pthread_mutex_lock(&pool.lock);
  }
  pool.closing--;
  if (pool.users || pool.first) return; /* others came meanwhile */
  for (int i = 0; i < MOST_THREADS; i++) {
    if (!workers[i].started) continue;
    if (atomic_exchange(&workers[i].state, STOP) == ASLEEP) futex_wake(&workers[i].state);
    pthread_join(workers[i].thread, NULL);
    workers[i].started = 0;
  }
}

/* ---- Placement ---- */

/* The processors of the same physical core as `cpu`; itself alone where the kernel does not say. */
static void siblings_of(int cpu, cpu_set_t *set) {
  char path[96], text[256] = "";
  CPU_ZERO(set);
  CPU_SET(cpu, set);
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
  FILE *file = fopen(path, "r");
  if (!file) return;
  if (fgets(text, sizeof text, file)) {
    for (char *at = text; *at && *at != '\n';) {
      long low = strtol(at, &at, 10), high = low;
      if (*at == '-') high = strtol(at + 1, &at, 10);
      for (long i = low; i <= high && i < CPU_SETSIZE; i++) CPU_SET(i, set);
      if (*at == ',') at++;
    }
  }
  fclose(file);
}

/* The processors of the process: those of its main thread, or of this one if it has more. A thread that calls models
   may be bound to one processor; the workers are not. */
static void allowed_now(cpu_set_t *set) {
  cpu_set_t own;
  if (sched_getaffinity(getpid(), sizeof *set, set)) CPU_ZERO(set);
  if (!sched_getaffinity(0, sizeof own, &own) && CPU_COUNT(&own) > CPU_COUNT(set)) *set = own;
}

/* Split the allowed processors into `pool.capacity` groups: whole physical cores if there are enough of them. */
static void make_groups(void) {
  static int order[CPU_SETSIZE], core_of[CPU_SETSIZE];
  int count = 0, cores = 0;
  cpu_set_t seen;
  CPU_ZERO(&seen);
  allowed_now(&pool.allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    cpu_set_t core;
    pool.group_of[cpu] = -1;
    if (!CPU_ISSET(cpu, &pool.allowed) || CPU_ISSET(cpu, &seen)) continue;
    siblings_of(cpu, &core);
    for (int other = cpu; other < CPU_SETSIZE; other++) {
      if (!CPU_ISSET(other, &core) || !CPU_ISSET(other, &pool.allowed) || CPU_ISSET(other, &seen)) continue;
      CPU_SET(other, &seen);
      core_of[count] = cores;
      order[count++] = other;
    }
    cores++;
  }
  pool.groups = pool.capacity;
  for (int g = 0; g < pool.groups; g++) {
    CPU_ZERO(&pool.group[g]);
    pool.callers[g] = 0;
  }
  int units = pool.groups <= cores ? cores : count;
  for (int i = 0; i < count; i++) {
    int unit = pool.groups <= cores ? core_of[i] : i;
    int group = units >= pool.groups ? (int)((int64_t)unit * pool.groups / units) : unit % pool.groups;
    CPU_SET(order[i], &pool.group[group]);
    pool.group_of[order[i]] = group;
  }
  for (int g = 0; g < pool.groups; g++) { /* more threads than processors: the rest may run anywhere */
    if (!CPU_COUNT(&pool.group[g])) pool.group[g] = pool.allowed;
  }
  for (int i = 0; i + 1 < pool.groups; i++) place(&workers[i], i + 1);
  for (Call *call = pool.first; call; call = call->next) call->group = -1; /* they find their groups anew */
}

static Worker *worker_in(int group) {
  for (int i = 0; i + 1 < pool.groups; i++) {
    if (workers[i].group == group) return &workers[i];
  }
  return NULL;
}

/* A group without a caller or a busy worker; -1 if there is none. */
static int quiet_group(void) {
  for (int g = 0; g < pool.groups; g++) {
    Worker *worker = worker_in(g);
    if (!pool.callers[g] && !(worker && worker->busy)) return g;
  }
  return -1;
}

/* Move a worker to a quiet group, and the one that is there to the group it leaves. */
static void move_away(Worker *worker) {
  int from = worker->group, to = quiet_group();
  if (to < 0) return;
  Worker *other = worker_in(to);
  place(worker, to);
  if (other) place(other, from);
}

/* The group that this thread runs in; -1 if that is in none. */
static int own_group(void) {
  int cpu = sched_getcpu();
  return cpu >= 0 && cpu < CPU_SETSIZE ? atomic_load_explicit(&pool.group_of[cpu], memory_order_relaxed) : -1;
}

static void forget_caller(Call *call) {
  if (call->group >= 0) pool.callers[call->group]--;
}

/* Note where the caller runs. A worker that is there leaves. */
static void note_caller(Call *call) {
  call->group = own_group();
  if (call->group < 0) return;
  pool.callers[call->group]++;
  Worker *there = worker_in(call->group);
  if (there && there->busy) move_away(there);
}

/* Make the groups anew if the process may use other processors by now. */
static void check_processors(void) {
  if (own_group() >= 0 && pool.calls++ % 1024 != 1023) return;
  cpu_set_t allowed;
  allowed_now(&allowed);
  if (!CPU_EQUAL(&allowed, &pool.allowed)) make_groups();
}

enum { FREE, LEFT, HAS_CALLER };

/* What a worker in the group would take from callers: nothing, the place of one that may come back, or of one that runs. */
static int claim_on(int group, int64_t now) {
  return pool.callers[group] ? HAS_CALLER : now - pool.left_at[group] < RETURN_NS ? LEFT : FREE;
}

/* Give a call idle workers until it has so many threads, first those that are in no caller's way. */
static void take_helpers(Call *call, int threads) {
  int64_t now = now_ns();
  for (int claim = FREE; claim <= HAS_CALLER; claim++) {
    for (int i = 0; i + 1 < pool.capacity && call->threads < threads; i++) {
      Worker *worker = &workers[i];
      if (worker->busy || claim_on(worker->group, now) > claim) continue;
      if (!worker->started && !start(worker)) continue;
      if (pool.callers[worker->group]) move_away(worker);
      worker->busy = 1;
      atomic_store(&worker->in_call, 1);
      call->helpers[call->threads++ - 1] = worker;
    }
  }
}

/* ---- Sharing ---- */

static int read_numbers(const char *folder, const char *name, long *first, long *second) {
  char path[2 * LONGEST_PATH];
  if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) return 0;
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  int found = fscanf(file, "%ld %ld", first, second); /* "max" is no number */
  fclose(file);
  return found;
}

/* The least of `count` and what the groups from `folder` up to its first `top` characters have processor time for. */
static int least_of_groups(char *folder, size_t top, int count) {
  for (;;) {
    long quota = -1, period = 0;
    if (read_numbers(folder, "cpu.max", &quota, &period) != 2 &&
        read_numbers(folder, "cpu.cfs_quota_us", &quota, &period))
      read_numbers(folder, "cpu.cfs_period_us", &period, &period);
    if (quota > 0 && period > 0) {
      long limit = (quota + period / 2) / period;
      if (limit < count) count = limit < 1 ? 1 : (int)limit;
    }
    char *slash = strrchr(folder, '/');
    if (!slash || (size_t)(slash - folder) < top) return count;
    *slash = 0;
  }
}

/* The least of `count` and what the groups below `base` allow; a container may see its own group as the top one. */
static int least_below(const char *base, const char *group, int count) {
  char folder[2 * LONGEST_PATH];
  int length = snprintf(folder, sizeof folder, "%s%s", base, group);
  return length < 0 || (size_t)length >= sizeof folder ? count : least_of_groups(folder, strlen(base), count);
}

/* How many processors the process may use: those it is allowed to run on, less if its control groups limit its time. */
static int processors(void) {
  static int count;
  if (count) return count;
  cpu_set_t allowed;
  allowed_now(&allowed);
  int least = CPU_COUNT(&allowed) ? CPU_COUNT(&allowed) : 1;
  char line[LONGEST_PATH], names[LONGEST_PATH + 2];
  FILE *file = fopen(OWN_GROUPS, "r");
  while (file && fgets(line, sizeof line, file)) { /* "4:cpu,cpuacct:/group", of version 2 "0::/group" */
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) continue;
    *group++ = 0;
    snprintf(names, sizeof names, ",%s,", controllers + 1);
    if (!strcmp(names, ",,")) least = least_below(CONTROL_GROUPS, group, least);
    if (strstr(names, ",cpu,")) least = least_below(CONTROL_GROUPS "/cpu", group, least);
  }
  if (file) fclose(file);
  return count = least;
}

static void grow(int threads) {
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  if (threads <= pool.capacity) return;
  pool.capacity = threads;
  make_groups();
}

/* Deal the threads out to all calls, one at a time, in order of arrival; none gets more than it wants. */
static void divide(void) {
  for (Call *call = pool.first; call; call = call->next) call->dealt = 0;
  for (int left = pool.capacity, before = 0; left != before;) {
    before = left;
    for (Call *call = pool.first; call && left; call = call->next) {
      if (call->dealt == call->wanted) continue;
      call->dealt++;
      left--;
    }
  }
  for (Call *call = pool.first; call; call = call->next) atomic_store(&call->share, call->dealt);
  atomic_store(&pool.divide_at, INT64_MAX);
}

/* Let waiting calls begin while there are threads, maybe with fewer than their shares at first. */
static void admit(void) {
  for (Call *call = pool.first; call; call = call->next) {
    int left = pool.capacity - pool.used;
    if (call->threads) continue;
    if (!call->share || left < 1) return;
    call->threads = call->share < left ? call->share : left;
    pool.used += call->threads;
    if (!call->body) {
      pthread_cond_signal(&call->changed);
    } else if (looks_for_call) {
      looks_for_call = 0;
    } else {
      pthread_cond_signal(&pool.granted);
    }
  }
}

static void note_gap(int64_t now) {
  int64_t gap = pool.ended_at ? now - pool.ended_at : LONGEST_GAP_NS * 2;
  if (gap > LONGEST_GAP_NS * 2) gap = LONGEST_GAP_NS * 2;
  pool.usual_gap += (gap - pool.usual_gap) / 4;
  atomic_store(&idle_spin_ns, pool.usual_gap < LONGEST_GAP_NS ? 2 * pool.usual_gap + 2000 : 0);
}

/* Count a call that has come; it may begin once it has threads. */
static void arrive(Call *call, int threads) {
  int asked = threads, most = processors();
  if (!pool.first) note_gap(now_ns());
  Call **last = &pool.first;
  for (; *last; last = &(*last)->next) asked += (*last)->wanted;
  if (asked > most) asked = most;
  grow(asked > threads ? asked : threads);
  *last = call;
  int wanted = threads < pool.capacity ? threads : pool.capacity;
  *call = (Call){.wanted = wanted, .group = -1, .changed = PTHREAD_COND_INITIALIZER};
  divide();
  admit();
}

/* Give the call threads that are left, until it has so many. */
static void take_threads(Call *call, int threads) {
  take_helpers(call, threads);
  if (call->threads < threads) { /* workers could not be started */
    call->wanted = call->threads;
    atomic_store(&call->share, call->threads);
  }
}

static void give_up_threads(Call *call, int threads) {
  pool.used -= call->threads - threads;
  for (; call->threads > threads && call->threads > 1; call->threads--) {
    Worker *helper = call->helpers[call->threads - 2];
    helper->busy = 0;
    atomic_store(&helper->in_call, 0);
  }
}

static void say_who_may_sleep(Call *call) {
  for (int i = 0; i < call->threads - 1; i++) call->helpers[i]->may_sleep = call->threads <= MOST_SLEEPERS;
}

/* Before a loop of the call: follow the division, and its caller where the kernel has put it. */
static void follow_share(Call *call) {
  int64_t divide_at = atomic_load_explicit(&pool.divide_at, memory_order_relaxed);
  int moved = own_group() != call->group;
  if (!moved && atomic_load_explicit(&call->share, memory_order_relaxed) == call->threads &&
      (divide_at == INT64_MAX || now_ns() < divide_at)) {
    return;
  }
  pthread_mutex_lock(&pool.lock);
  if (moved) {
    forget_caller(call);
    note_caller(call);
  }
  if (now_ns() >= pool.divide_at) divide();
  int left = pool.capacity - pool.used, missing = call->share - call->threads;
  if (missing < 0) {
    give_up_threads(call, call->share);
    admit();
  } else if (missing && left > 0) {
    int before = call->threads;
    take_threads(call, before + (missing < left ? missing : left));
    pool.used += call->threads - before;
  }
  say_who_may_sleep(call);
  pthread_mutex_unlock(&pool.lock);
}

/* With the lock, which is let go: wait until the call may begin, and give it its helpers. The thread that runs it calls
   this. */
static void enter(Call *call) {
  while (!call->threads) pthread_cond_wait(&call->changed, &pool.lock);
  int granted = call->threads;
  call->threads = 1;
  check_processors();
  note_caller(call);
  take_threads(call, granted < call->share ? granted : call->share); /* less if others came since it was let in */
  pool.used -= granted - call->threads;
  admit();
  say_who_may_sleep(call);
  pthread_mutex_unlock(&pool.lock);
  wake_helpers(call->helpers, call->threads - 1);
}

static void begin(Call *call, int threads) {
  pthread_mutex_lock(&pool.lock);
  arrive(call, threads);
  enter(call);
}

/* A call is over: its threads are for others. */
static void leave(Call *call) {
  give_up_threads(call, 0);
  Call **at = &pool.first;
  while (*at != call) at = &(*at)->next;
  *at = call->next;
  pool.ended_at = now_ns();
  forget_caller(call);
  if (call->group >= 0) pool.left_at[call->group] = pool.ended_at;
  atomic_store(&pool.divide_at, pool.ended_at + RETURN_NS);
  for (Call *other = pool.first; other; other = other->next) {
    if (other->threads) continue;
    divide();
    admit();
    break;
  }
}

static void end(Call *call) {
  pthread_mutex_lock(&pool.lock);
  leave(call);
  if (pool.had_users && !pool.users && !pool.first) stop_threads(); /* the last model was closed meanwhile */
  pthread_mutex_unlock(&pool.lock);
  pthread_cond_destroy(&call->changed);
}

/* ---- Stand-ins ---- */

/* Confine this stand-in to a quiet group, the one where it is if that is quiet. */
static void settle(void) {
  int group = own_group();
  Worker *there = group < 0 ? NULL : worker_in(group);
  if (group < 0 || pool.callers[group] || (there && there->busy)) group = quiet_group();
  cpu_set_t *processors = group < 0 ? &pool.allowed : &pool.group[group];
  sched_setaffinity(0, sizeof *processors, processors);
}

/* Run, for callers that wait, one call after the other. */
static void *stand_in(void *unused) {
  (void)unused;
  compute_as_usual();
  pthread_setname_np(pthread_self(), "slipstream");
  pthread_mutex_lock(&pool.lock);
  for (;;) {
    Call *call = pool.first;
    while (call && !(call->threads && call->body)) call = call->next;
    if (!call) {
      if (pool.closing) break;
      pool.idle_stand_ins++;
      sched_setaffinity(0, sizeof pool.allowed, &pool.allowed); /* it wakes where it can run at once */
      pthread_cond_wait(&pool.granted, &pool.lock);
      pool.idle_stand_ins--;
      continue;
    }
    void (*body)(void *) = call->body;
    call->body = NULL;
    settle();
    enter(call);
    current = call;
    body(call->data);
    current = NULL;
    pthread_mutex_lock(&pool.lock);
    looks_for_call = 1;
    leave(call);
    looks_for_call = 0;
    call->done = 1;
    pthread_cond_signal(&call->changed);
  }
  pthread_mutex_unlock(&pool.lock);
  return NULL;
}

/* Whether there are stand-ins, and for one more call that waits, up to as many as calls can run at a time. */
static int has_stand_in(void) {
  if (pool.closing) return 0;
  int needed = 1 + pool.stand_ins - pool.idle_stand_ins;
  for (Call *call = pool.first; call; call = call->next) needed += call->body != NULL;
  if (pool.stand_ins < needed && pool.stand_ins < pool.capacity) {
    pool.stand_ins += start_thread(&pool.stand_in[pool.stand_ins], stand_in, NULL, 0);
  }
  return pool.stand_ins > 0;
}

void slipstream_pool_call(int threads, void (*body)(void *), void *data) {
  Call *call = &own_call;
  if (current || is_worker) {
    slipstream_pool_begin(threads);
    body(data);
    slipstream_pool_end();
    return;
  }
  pthread_mutex_lock(&pool.lock);
  arrive(call, threads < 1 ? 1 : threads);
  if (!call->threads && has_stand_in()) {
    call->body = body;
    call->data = data;
    while (!call->done) pthread_cond_wait(&call->changed, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_cond_destroy(&call->changed);
    return;
  }
  enter(call);
  current = call;
  body(data);
  current = NULL;
  end(call);
}

int slipstream_pool_begin(int threads) {
  if (current) {
    current->depth++;
    return current->threads;
  }
  if (is_worker) return 1; /* a task that calls a model: its loops run in the task */
  begin(&own_call, threads < 1 ? 1 : threads);
  current = &own_call;
  return own_call.threads;
}

void slipstream_pool_end(void) {
  if (!current) return;
  if (current->depth) {
    current->depth--;
    return;
  }
  current = NULL;
  end(&own_call);
}

void slipstream_pool_limit(int threads) {
  if (current) current->limit = threads;
}

void slipstream_pool_threads(int threads) { atomic_store(&implicit_threads, threads < 1 ? 1 : threads); }

/* ---- Parallel loops ---- */

static uint64_t range_of(int thread, int threads, int tasks) {
  uint64_t first = (uint64_t)thread * tasks / threads, end = (uint64_t)(thread + 1) * tasks / threads;
  return first << 32 | end;
}

static void wait_for(Worker *worker) {
  for (int spins = 0; atomic_load_explicit(&worker->state, memory_order_acquire) == RUNNING; spins++) {
    relax();
    if (spins % 4096 == 4095) sched_yield(); /* it may have been preempted, even by us */
  }
}

static int launch(Call *call, SlipstreamTask task, void *data, int most) {
  follow_share(call);
  int tasks = call->threads > 1 && is_crowded() ? call->threads * CROWDED_TASKS : call->threads;
  if (call->limit > 0 && call->limit < tasks) tasks = call->limit;
  if (most > 0 && most < tasks) tasks = most;
  int threads = tasks < call->threads ? tasks : call->threads;
  SlipstreamEnv env = {NULL, tasks};
  for (int i = 1; i < threads; i++) {
    Worker *worker = call->helpers[i - 1];
    worker->task = task;
    worker->data = data;
    worker->env = env;
    atomic_store_explicit(&worker->range, range_of(i, threads, tasks), memory_order_relaxed);
    if (atomic_exchange_explicit(&worker->state, PENDING, memory_order_acq_rel) == ASLEEP) futex_wake(&worker->state);
  }
  _Atomic uint64_t own = range_of(0, threads, tasks);
  if (threads == 1) return run_tasks(&own, 0, task, &env, data);
  int64_t started = now_ns();
  int result = run_tasks(&own, 0, task, &env, data);
  int64_t allowed = LATE_NS + (now_ns() - started) / 2;
  for (int i = 1; i < threads; i++) {
    int failed = run_tasks(&call->helpers[i - 1]->range, 1, task, &env, data);
    if (failed) result = failed;
  }
  int64_t began = now_ns();
  for (int i = 1; i < threads; i++) {
    Worker *worker = call->helpers[i - 1];
    int32_t pending = PENDING; /* one that comes too late has nothing to do */
    if (!atomic_compare_exchange_strong(&worker->state, &pending, IDLE)) wait_for(worker);
    if (worker->result) result = worker->result;
    worker->result = 0;
  }
  int score = atomic_load_explicit(&late_score, memory_order_relaxed);
  if (now_ns() - began > allowed) {
    atomic_store_explicit(&late_score, score + LATE_SCORE < MOST_SCORE ? score + LATE_SCORE : MOST_SCORE, memory_order_relaxed);
  } else if (score) {
    atomic_store_explicit(&late_score, score - 1, memory_order_relaxed);
  }
  return result;
}

int slipstream_pool_launch(SlipstreamTask task, void *data, int tasks) {
  SlipstreamEnv alone = {NULL, 1};
  if (is_worker || in_loop) return task(0, &alone, data); /* a loop inside of a task: the helpers are taken */
  int of_its_own = !current;
  if (of_its_own) slipstream_pool_begin(atomic_load(&implicit_threads));
  in_loop = 1;
  int result = launch(current, task, data, tasks);
  in_loop = 0;
  if (of_its_own) slipstream_pool_end();
  return result;
}

/* ---- Temporary buffers ---- */

typedef struct {
  void *memory;
  uint64_t bytes;
  int used;
} Block;

static pthread_key_t blocks_key;
static pthread_once_t blocks_once = PTHREAD_ONCE_INIT;

static void free_blocks(void *blocks) {
  for (int i = 0; i < MOST_BLOCKS; i++) free(((Block *)blocks)[i].memory);
  free(blocks);
}

static void make_blocks_key(void) { pthread_key_create(&blocks_key, free_blocks); }

static Block *blocks_of_thread(void) {
  pthread_once(&blocks_once, make_blocks_key);
  Block *blocks = pthread_getspecific(blocks_key);
  if (!blocks && (blocks = calloc(MOST_BLOCKS, sizeof *blocks))) pthread_setspecific(blocks_key, blocks);
  return blocks;
}

void *slipstream_pool_alloc(uint64_t bytes) {
  if (!bytes) bytes = 1; /* NULL means that there is no memory */
  Block *blocks = blocks_of_thread(), *found = NULL;
  for (int i = 0; blocks && i < MOST_BLOCKS; i++) {
    Block *block = &blocks[i];
    if (block->used) continue;
    if (!found || (block->bytes >= bytes && (found->bytes < bytes || block->bytes < found->bytes))) found = block;
  }
  if (found && found->bytes < bytes) {
    free(found->memory);
    found->bytes = 0;
    if (posix_memalign(&found->memory, ALIGNMENT, bytes)) {
      found->memory = NULL;
      return NULL;
    }
    found->bytes = bytes;
  }
  if (found) {
    found->used = 1;
    return found->memory;
  }
  void *memory = NULL;
  return posix_memalign(&memory, ALIGNMENT, bytes) ? NULL : memory;
}

void slipstream_pool_free(void *memory) {
  Block *blocks = memory ? blocks_of_thread() : NULL;
  for (int i = 0; blocks && i < MOST_BLOCKS; i++) {
    if (blocks[i].memory != memory) continue;
    blocks[i].used = 0;
    return;
  }
  free(memory);
}

/* ---- Users, fork and the end ---- */

static void reset(void) {
  pthread_mutex_init(&pool.lock, NULL);
  pthread_cond_init(&pool.granted, NULL);
  pool.stand_ins = pool.idle_stand_ins = pool.closing = 0;
  pool.used = 0;
  memset(pool.callers, 0, sizeof pool.callers);
  pool.first = NULL;
  atomic_store(&pool.divide_at, INT64_MAX);
}

static void before_fork(void) { pthread_mutex_lock(&pool.lock); } /* the child gets groups that are whole */

static void after_fork(void) { pthread_mutex_unlock(&pool.lock); }

static void after_fork_in_child(void) {
  /* None of the workers and none of the other callers are here. */
  reset();
  for (int i = 0; i < MOST_THREADS; i++) {
    workers[i].started = workers[i].busy = 0;
    atomic_store(&workers[i].state, IDLE);
    workers[i].result = 0;
    atomic_store(&workers[i].in_call, 0);
  }
  current = NULL;
  in_loop = 0;
}

__attribute__((constructor)) static void on_load(void) {
  reset();
  pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

void slipstream_pool_retain(void) {
  pthread_mutex_lock(&pool.lock);
  pool.users++;
  pool.had_users = 1;
  pthread_mutex_unlock(&pool.lock);
}

void slipstream_pool_release(void) {
  pthread_mutex_lock(&pool.lock);
  if (!--pool.users && !pool.first) stop_threads();
  pthread_mutex_unlock(&pool.lock);
}

int slipstream_pool_workers(void) {
  int count = 0;
  for (int i = 0; i < MOST_THREADS; i++) count += workers[i].started;
  return count;
}

int slipstream_pool_sleeping(void) {
  int count = 0;
  for (int i = 0; i < MOST_THREADS; i++) count += workers[i].started && atomic_load(&workers[i].state) == ASLEEP;
  return count;
}

/* ---- TVM's names, for code that looks them up: the tuner's processes load this library before TVM's ---- */

int TVMBackendParallelLaunch(SlipstreamTask task, void *data, int tasks) {
  return slipstream_pool_launch(task, data, tasks);
}
