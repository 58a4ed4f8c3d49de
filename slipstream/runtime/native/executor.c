/* Runs one compiled model: its operators in order, in memory that was planned when it was compiled.

   The file is compiled behind tables that were generated for the model (slipstream/runtime/source.py): its tensors,
   the operators with their arguments, and the prefix of its public functions. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pool.h"

#define PUBLIC __attribute__((visibility("default")))
#define JOINED(prefix, name) prefix##_##name
#define NAMED(prefix, name) JOINED(prefix, name)
#define FUNCTION(name) NAMED(PREFIX, name)

/* What an operator's function takes: TVM's argument and tensor records. */
typedef struct {
  int32_t type;
  uint32_t unused;
  void *pointer;
} Argument;

typedef struct {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} Tensor;

enum { CPU = 1, TENSOR = 7 };

/* Compiled operators reach the outside through these: TVM's code generator makes them pointers of the library. */
extern int (*__TVMBackendParallelLaunch)(SlipstreamTask, void *, int) __attribute__((weak));
extern void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) __attribute__((weak));
extern int (*__TVMBackendFreeWorkspace)(int, int, void *) __attribute__((weak));

static __thread char error_text[256];

__attribute__((visibility("hidden"))) void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts,
                                                                              int32_t count) {
  size_t used = (size_t)snprintf(error_text, sizeof error_text, "%s: ", kind);
  for (int32_t i = 0; i < count && used < sizeof error_text; i++) {
    used += (size_t)snprintf(error_text + used, sizeof error_text - used, "%s", parts[i]);
  }
}

__attribute__((visibility("hidden"))) void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &text, 1);
}

static void *alloc_workspace(int device_type, int device_id, uint64_t bytes, int code, int bits) {
  (void)device_type, (void)device_id, (void)code, (void)bits;
  return slipstream_pool_alloc(bytes);
}

static int free_workspace(int device_type, int device_id, void *memory) {
  (void)device_type, (void)device_id;
  slipstream_pool_free(memory);
  return 0;
}

__attribute__((constructor)) static void connect_operators(void) {
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = slipstream_pool_launch;
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = alloc_workspace;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = free_workspace;
}

/* Of the lists of unused workspaces. One for all models of the library, so that a fork can wait for it: a child must not
   inherit it locked by a thread that it does not have. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void take_lock(void) { pthread_mutex_lock(&lock); }

static void give_lock_back(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void mind_forks(void) { pthread_atfork(take_lock, give_lock_back, give_lock_back); }

/* What one call at a time needs: the operators' results, and arguments that point to them. */
typedef struct Workspace {
  struct Workspace *next;
  char *memory;
  Tensor tensors[TENSORS];
  Argument arguments[ARGUMENTS];
} Workspace;

typedef struct {
  _Atomic int threads;
  char *weights;
  size_t weights_bytes;
  Workspace *unused;
} Model;

/* Memory of a call. Unless it is small it lies on large pages, where the kernel has some, from its first byte to its
   last: parts on small pages made models a few percent slower. Not from the heap, which would keep it when the model is
   gone. */
#define LARGE_PAGE ((size_t)2 << 20)
#define ARENA_PAGE (ARENA_BYTES < LARGE_PAGE / 2 ? (size_t)4096 : LARGE_PAGE)
#define ARENA_MAPPED ((ARENA_BYTES + ARENA_PAGE - 1) & ~(ARENA_PAGE - 1))

static char *map_arena(void) {
  char *memory = mmap(NULL, ARENA_MAPPED + ARENA_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return NULL;
  size_t before = -(uintptr_t)memory & (ARENA_PAGE - 1);
  if (before) munmap(memory, before);
  munmap(memory + before + ARENA_MAPPED, ARENA_PAGE - before);
  madvise(memory + before, ARENA_MAPPED, MADV_HUGEPAGE);
  return memory + before;
}

static Workspace *make_workspace(const Model *model) {
  Workspace *workspace = calloc(1, sizeof *workspace);
  char *memory = map_arena();
  if (!workspace || !memory) {
    free(workspace);
    if (memory) munmap(memory, ARENA_MAPPED);
    snprintf(error_text, sizeof error_text, "not enough memory for a call");
    return NULL;
  }
  workspace->memory = memory;
  for (int i = 0; i < TENSORS; i++) {
    const TensorPlan *plan = &tensor_plans[i];
    char *base = plan->place == IN_WEIGHTS ? model->weights : plan->place == IN_ARENA ? workspace->memory : NULL;
    workspace->tensors[i] = (Tensor){base ? base + plan->offset : NULL, CPU, 0, plan->ndim, plan->code, plan->bits, 1,
                                     plan->shape, NULL, 0};
  }
  for (int i = 0; i < ARGUMENTS; i++) {
    workspace->arguments[i] = (Argument){TENSOR, 0, &workspace->tensors[argument_tensors[i]]};
  }
  return workspace;
}

static void free_workspace_of(Workspace *workspace) {
  munmap(workspace->memory, ARENA_MAPPED);
  free(workspace);
}

static Workspace *take_workspace(Model *model) {
  take_lock();
  Workspace *workspace = model->unused;
  if (workspace) model->unused = workspace->next;
  give_lock_back();
  return workspace ? workspace : make_workspace(model);
}

static void return_workspace(Model *model, Workspace *workspace) {
  take_lock();
  workspace->next = model->unused;
  model->unused = workspace;
  give_lock_back();
}

/* The weights, mapped: pages are read when they are first used, and shared by all processes that run the model. */
static int map_weights(Model *model, const char *path) {
  struct stat status;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0 || fstat(file, &status) || (size_t)status.st_size < WEIGHTS_BYTES) {
    snprintf(error_text, sizeof error_text, "cannot read %.150s: %s", path, file < 0 ? strerror(errno) : "too short");
    if (file >= 0) close(file);
    return -1;
  }
  model->weights_bytes = (size_t)status.st_size;
  model->weights = mmap(NULL, model->weights_bytes, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (model->weights != MAP_FAILED) return 0;
  snprintf(error_text, sizeof error_text, "cannot map %.150s: %s", path, strerror(errno));
  return -1;
}

PUBLIC const char *FUNCTION(error)(void) { return error_text; }

PUBLIC void FUNCTION(destroy)(Model *model) {
  if (!model) return;
  for (Workspace *workspace = model->unused, *next; workspace; workspace = next) {
    next = workspace->next;
    free_workspace_of(workspace);
  }
  if (model->weights) munmap(model->weights, model->weights_bytes);
  slipstream_pool_release();
  free(model);
}

/* As many as the model was compiled for, or as there are processors. */
static int usual_threads(void) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return THREADS;
  return CPU_COUNT(&allowed) < THREADS ? CPU_COUNT(&allowed) : THREADS;
}

static int names(const char *line, const char *word) {
  size_t length = strlen(word);
  for (const char *at = line; (at = strstr(at, word)); at += length) {
    if (at > line && at[-1] <= ' ' && at[length] <= ' ') return 1;
  }
  return 0;
}

/* The first feature that the code needs and the processor lacks: an instruction of it would end the process. */
static const char *lacking_feature(void) {
  const char *const *word = processor;
  FILE *file = fopen("/proc/cpuinfo", "r");
  char *line = NULL;
  size_t size = 0;
  int known = 0;
  while (file && !known && getline(&line, &size, file) > 0) {
    known = !strncmp(line, "flags", 5) || !strncmp(line, "Features", 8);
    while (known && *word && names(line, *word)) word++;
  }
  free(line);
  if (file) fclose(file);
  return known ? *word : NULL;
}

/* Linux lets a process use the tile registers of AMX, which a model's operators may need, once it has asked. */
static void allow_tiles(void) {
#ifdef __x86_64__
  syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */);
#endif
}

PUBLIC Model *FUNCTION(create)(const char *weights, int threads) {
  const char *missing = lacking_feature();
  if (missing) {
    snprintf(error_text, sizeof error_text, "this processor lacks %s, which the model was compiled for", missing);
    return NULL;
  }
  Model *model = calloc(1, sizeof *model);
  if (!model) {
    snprintf(error_text, sizeof error_text, "not enough memory for a model");
    return NULL;
  }
  allow_tiles();
  slipstream_pool_retain();
  model->threads = threads > 0 ? threads : usual_threads();
  if (WEIGHTS_BYTES && map_weights(model, weights)) {
    model->weights = NULL;
    FUNCTION(destroy)(model);
    return NULL;
  }
  return model;
}

PUBLIC void FUNCTION(set_threads)(Model *model, int threads) {
  model->threads = threads > 0 ? threads : usual_threads();
}

PUBLIC int FUNCTION(inputs)(void) { return INPUTS; }

PUBLIC int FUNCTION(outputs)(void) { return OUTPUTS; }

PUBLIC const TensorInfo *FUNCTION(input)(int index) {
  return index >= 0 && index < INPUTS ? &input_infos[index] : NULL;
}

PUBLIC const TensorInfo *FUNCTION(output)(int index) {
  return index >= 0 && index < OUTPUTS ? &output_infos[index] : NULL;
}

/* Where operators read an input or write an output: the caller's memory, or a copy if its elements are not aligned. */
static void *place_of(const void *given, char *memory, const TensorInfo *info) {
  return (uintptr_t)given % info->element_bytes ? memory + info->staging : (void *)given;
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int run_steps(Workspace *workspace, const int *step_threads, int64_t *nanoseconds) {
  Argument result = {0};
  for (int i = 0; i < STEPS; i++) {
    const Step *step = &steps[i];
    int64_t began = nanoseconds ? now_ns() : 0;
    slipstream_pool_limit(step_threads ? step_threads[i] : step->threads);
    if (step->function(NULL, workspace->arguments + step->first, step->count, &result)) return -1;
    if (nanoseconds) nanoseconds[i] = now_ns() - began;
  }
  return 0;
}

/* A tensor is in memory of the caller. */
static void point_to(Workspace *workspace, int tensor, void *memory) {
  workspace->tensors[tensor].data = (char *)memory + tensor_plans[tensor].offset;
}

/* A call that has its threads. Waiting calls hold no workspace: as many are in use as calls run, and the next call gets
   the one that was used last, which the caches still hold. */
static int run_admitted(Model *model, const void *const *inputs, void *const *outputs, const int *step_threads,
                        int64_t *nanoseconds) {
  Workspace *workspace = take_workspace(model);
  if (!workspace) return -1;
  for (int i = 0; i < INPUTS; i++) {
    void *place = place_of(inputs[i], workspace->memory, &input_infos[i]);
    if (place != inputs[i]) memcpy(place, inputs[i], input_infos[i].bytes);
    for (int k = 0; k < INPUT_VIEWS; k++) {
      if (input_views[k].index == i) point_to(workspace, input_views[k].tensor, place);
    }
  }
  for (int i = 0; i < OUTPUTS; i++) {
    if (output_copies[i] >= 0) continue;
    void *place = place_of(outputs[i], workspace->memory, &output_infos[i]);
    for (int k = 0; k < OUTPUT_VIEWS; k++) {
      if (output_views[k].index == i) point_to(workspace, output_views[k].tensor, place);
    }
  }
  error_text[0] = 0;
  int failed = run_steps(workspace, step_threads, nanoseconds);
  /* What fails in a worker has its text there; but for memory, operators check everything before their loops. */
  if (failed && !error_text[0]) snprintf(error_text, sizeof error_text, "not enough memory for an operator");
  for (int i = 0; i < OUTPUTS && !failed; i++) {
    const void *from = output_copies[i] >= 0 ? workspace->tensors[output_copies[i]].data
                                             : place_of(outputs[i], workspace->memory, &output_infos[i]);
    if (from != outputs[i]) memcpy(outputs[i], from, output_infos[i].bytes);
  }
  return_workspace(model, workspace);
  return failed;
}

typedef struct {
  Model *model;
  const void *const *inputs;
  void *const *outputs;
  const int *step_threads;
  int64_t *nanoseconds;
  int failed;
  char error[sizeof error_text];
} Request;

static void answer(void *argument) {
  Request *request = argument;
  request->failed = run_admitted(request->model, request->inputs, request->outputs, request->step_threads,
                                 request->nanoseconds);
  if (request->failed) memcpy(request->error, error_text, sizeof error_text); /* of this thread, maybe not the caller's */
}

static int run(Model *model, const void *const *inputs, void *const *outputs, const int *step_threads,
               int64_t *nanoseconds) {
  int threads = model->threads;
  Request request = {model, inputs, outputs, step_threads, nanoseconds, 0, ""};
  slipstream_pool_call(step_threads || threads < MOST_STEP_THREADS ? threads : MOST_STEP_THREADS, answer, &request);
  memcpy(error_text, request.error, sizeof error_text);
  return request.failed;
}

PUBLIC int FUNCTION(run)(Model *model, const void *const *inputs, void *const *outputs) {
  return run(model, inputs, outputs, NULL, NULL);
}

/* As `run`, with at most `step_threads[i]` threads in step i (NULL: as planned), and the time each step took. */
PUBLIC int FUNCTION(profile)(Model *model, const void *const *inputs, void *const *outputs, const int *step_threads,
                             int64_t *nanoseconds) {
  return run(model, inputs, outputs, step_threads, nanoseconds);
}

PUBLIC int FUNCTION(steps)(void) { return STEPS; }

PUBLIC const char *FUNCTION(step)(int index) { return index >= 0 && index < STEPS ? steps[index].name : NULL; }
