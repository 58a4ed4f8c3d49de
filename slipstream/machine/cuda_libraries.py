"""Where CUDA's libraries are: in NVIDIA's wheels, in a toolkit, or wherever the dynamic linker finds them.

TVM loads its CUDA runtime only if `libcudart` happens to be on the library path, and says nothing if it is not. Here
it is looked for in all usual places, so that `pip install 'slipstream[cuda]'` is enough beside the driver.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_TOOLKITS = ("/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64", "/usr/local/cuda*/targets/*/lib")


def load_runtime() -> bool:
    """Make TVM able to use a GPU, if it was not from the start; False where something it needs is missing.

    Nothing of CUDA is initialised: that happens with the first device that is asked for.
    """
    import tvm

    if tvm.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return True
    runtime = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    try:
        # Once it is in the process, the linker needs no path to it.
        ctypes.CDLL(find_library("libcudart.so.13"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return tvm.get_global_func("device_api.cuda", allow_missing=True) is not None


@cache
def load_nvrtc() -> Any | None:
    """NVIDIA's run-time compiler as a ctypes library; None if there is none."""
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        try:
            return ctypes.CDLL(find_library(name))
        except OSError:
            continue
    return None


def find_library(name: str) -> str:
    """The path of a library of CUDA's, or its bare name for the dynamic linker to look for."""
    return next((str(path) for folder in _library_folders() if (path := folder / name).exists()), name)


def include_folders() -> list[str]:
    """CUDA's headers; only half precision needs them, and tensor cores some that are in a wheel of their own."""
    beside = [folder.parent / "include" for folder in _library_folders()]
    with_half = [folder for folder in beside if (folder / "cuda_fp16.h").exists()]
    whole = [folder for folder in with_half if (folder / "crt" / "mma.h").exists()]
    return [str(folder) for folder in [*whole, *with_half][:1]]


def _library_folders() -> Iterator[Path]:
    for root in _wheel_roots():
        yield from sorted(Path(root).glob("*/lib"), reverse=True)
    if home := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        yield Path(home) / "lib64"
    for pattern in _TOOLKITS:
        yield from map(Path, sorted(glob.glob(pattern), reverse=True))


def _wheel_roots() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    return list(spec.submodule_search_locations or []) if spec is not None else []
