/* The thread pool that compiled models of one process share. */
#ifndef SLIPSTREAM_POOL_H
#define SLIPSTREAM_POOL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a task is given; `num_task` is into how many tasks the loop was split. As TVM's generated code expects it. */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} SlipstreamEnv;

typedef int (*SlipstreamTask)(int task, SlipstreamEnv *env, void *data);

/* Count one more or one less user of the pool. With the last user its threads end. */
void slipstream_pool_retain(void);
void slipstream_pool_release(void);

/* A call of a model: takes up to `threads` threads (the calling one included), fewer while other calls run. Returns
   how many it has at first. Every call that was begun has to be ended by the same thread. */
int slipstream_pool_begin(int threads);
void slipstream_pool_end(void);

/* The same around `body`, which may run on another thread, one of the pool's: `body` must not care which it is. */
void slipstream_pool_call(int threads, void (*body)(void *), void *data);

/* How many threads the next parallel loops of this call may use; 0: all it has. */
void slipstream_pool_limit(int threads);

/* Run `task` split among the threads of the current call. Outside of a call it is a call of its own, on as many
   threads as `slipstream_pool_threads` set. */
int slipstream_pool_launch(SlipstreamTask task, void *data, int tasks);
void slipstream_pool_threads(int threads);

/* Memory for a program's temporary buffers, kept by the thread for its next use. */
void *slipstream_pool_alloc(uint64_t bytes);
void slipstream_pool_free(void *memory);

/* Workers that exist, and those of them that are asleep: for tests. */
int slipstream_pool_workers(void);
int slipstream_pool_sleeping(void);

#ifdef __cplusplus
}
#endif
#endif
