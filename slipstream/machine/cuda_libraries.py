"""CUDA's libraries and headers, in NVIDIA's wheels or in a toolkit, and TVM's library that needs them.

`cuda-pathfinder`, which the `cuda` extra installs, looks in wheels, Conda environments and toolkits. Without it only
the dynamic linker's path and the toolkit at `CUDA_HOME` are searched.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

_VERSIONS = (13, 12)
_USUAL_TOOLKIT = "/usr/local/cuda"


@cache
def load_library(name: str) -> Any | None:
    """CUDA's library `name` (`nvrtc`, `cudart`) for ctypes, its symbols visible to others; None if there is none.

    Nothing of CUDA is initialised: that happens with the first device that is asked for.
    """
    for path in _candidates(name):
        try:
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    return None


def load_runtime() -> bool:
    """Make TVM able to use a GPU, if it was not from the start; False where something it needs is missing.

    TVM loads its CUDA part only if `libcudart` is on the library path, and prints nothing if it is not.
    """
    import tvm

    if tvm.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return True
    try:
        # Once libcudart is in the process, the linker needs no path to it.
        load_library("cudart")
        ctypes.CDLL(str(Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return tvm.get_global_func("device_api.cuda", allow_missing=True) is not None


def include_folder() -> str | None:
    """CUDA's headers, which only half precision needs; None if there are none.

    A folder with all of them comes first: wheels have those of tensor cores (`crt/`) apart from the rest.
    """
    folders = [folder for folder in _include_folders() if (folder / "cuda_fp16.h").exists()]
    whole = [folder for folder in folders if (folder / "crt" / "mma.h").exists()]
    return next(map(str, (*whole, *folders)), None)


def _include_folders() -> list[Path]:
    toolkit = _toolkit() / "include"
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        return [toolkit]
    found = find_nvidia_header_directory("cudart")
    return [*([Path(found)] if found else []), toolkit]


def _candidates(name: str) -> list[str]:
    """Where the library may be, best first; a bare name is for the dynamic linker to look for."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        files = [f"lib{name}.so.{version}" for version in _VERSIONS]
        return [*(str(_toolkit() / "lib64" / file) for file in files), *files]
    try:
        return [str(load_nvidia_dynamic_lib(name).abs_path)]
    except DynamicLibNotFoundError:
        return []


def _toolkit() -> Path:
    return Path(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or _USUAL_TOOLKIT)
