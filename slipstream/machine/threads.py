"""How many threads compiled code runs on, in a process where TVM runs it.

The tuner's processes load the thread pool of compiled models before TVM (`runtime/native/pool.c`): it then takes the
place of TVM's, so that programs are timed with the threads they will have. Elsewhere TVM's pool is configured.
Left alone, TVM uses half the cores it sees on x86-64 (it assumes hyper-threading) and binds the calling
thread to core 0, which slows down everything else in the process. Its pool belongs to the calling thread and
takes its size when that thread first runs compiled code, so `use_threads` comes before that.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.machine.target import available_cores

_SHARE_ALL_CORES = -3
# How often an idle worker looks for work before it sleeps. TVM's own 300,000 keep a core busy for a tenth of
# a second after every run, in which nothing else of the process gets it.
_SPIN_COUNT = "1000"
_configured = threading.local()


def _loaded_pool() -> ctypes.CDLL | None:
    """The pool of compiled models, if it was loaded before everything else."""
    everything = ctypes.CDLL(None)
    return everything if hasattr(everything, "slipstream_pool_begin") else None


_models_pool = _loaded_pool()


@contextmanager
def one_call(count: int) -> Iterator[None]:
    """The state in which a model runs its operators: its threads are awake and its own."""
    if _models_pool is None:
        yield
        return
    _models_pool.slipstream_pool_begin(count)
    try:
        yield
    finally:
        _models_pool.slipstream_pool_end()


def use_threads(count: int | None = None) -> int:
    """Let this thread's compiled code run on `count` threads (default: every core it may use)."""
    cores = sorted(os.sched_getaffinity(0))
    wanted = min(count or available_cores(), len(cores))
    if _models_pool is not None:
        _models_pool.slipstream_pool_threads(wanted)
        return wanted
    if getattr(_configured, "process", os.getpid()) != os.getpid():
        wanted = 1  # the process was forked, and the threads of this thread's pool are the parent's
    if getattr(_configured, "count", None) != wanted:
        import tvm_ffi

        os.environ.setdefault("TVM_BIND_THREADS", "0")
        os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", _SPIN_COUNT)
        configure = tvm_ffi.get_global_func("runtime.config_threadpool")
        configure(_SHARE_ALL_CORES, wanted, [str(core) for core in cores])
        _configured.count = wanted
        _configured.process = getattr(_configured, "process", os.getpid())
    return wanted
