"""PyTorch: eager, compiled at its defaults, and compiled with max-autotune and frozen weights.

The model is translated from ONNX operator by operator. Images and weights once as they are, once with channels last.
In half precision it is compiled under autocast with frozen weights, which are then converted once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.errors import MissingDependencyError

CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels last"
FROZEN, MAX_AUTOTUNE, FUSED_ATTENTION = "frozen", "frozen, max-autotune", "frozen, attention as one operator"
_IMAGES = 4  # dimensions of a batch of them


def settings(side: str, options: Mapping[str, Any]) -> Sequence[str]:
    """Compiling takes long, so models of images are compiled with channels last only, which has been the faster way."""
    with np.load(options["feeds"]) as feeds:
        images = _has_images(feeds.values())
    layouts = (CONTIGUOUS, CHANNELS_LAST) if images and side == "torch" else (CHANNELS_LAST if images else CONTIGUOUS,)
    if not _is_short(options):
        return layouts
    ways = (FROZEN, MAX_AUTOTUNE) if images else (FROZEN, MAX_AUTOTUNE, FUSED_ATTENTION)
    return [f"{layout}, {way}" for layout in layouts for way in ways]


def open_torch(job: Mapping[str, Any], feeds: dict[str, Any]) -> Callable[[], list[Any]]:
    side, setting, options = job["name"], job["setting"], job["options"]
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(options["work"], "inductor").resolve())
    import torch

    from slipstream.artifact.baselines import torch_module

    torch.set_num_threads(job["threads"])
    if side != "torch":
        _need_compiler()
    if side != "torch" and not _has_images(feeds.values()) and FUSED_ATTENTION not in setting:
        _leave_attention_alone()
    module = torch_module(Path(options["clean"]))
    tensors = [torch.from_numpy(value) for value in feeds.values()]
    if CHANNELS_LAST in setting:
        module = module.to(memory_format=torch.channels_last)
        tensors = [t.to(memory_format=torch.channels_last) if t.ndim == _IMAGES else t for t in tensors]
    tries_all = side == "torch.compile max-autotune" or MAX_AUTOTUNE in setting
    if tries_all or _is_short(options):
        from torch._inductor import config

        config.freezing = True
    if side != "torch":
        module = torch.compile(module, fullgraph=True, mode="max-autotune" if tries_all else None)
    short = getattr(torch, options["dtype"]) if _is_short(options) else None

    def run() -> list[Any]:
        with torch.inference_mode(), torch.autocast("cpu", dtype=short, enabled=short is not None):
            leaves = torch.utils._pytree.tree_leaves(module(*tensors))
        # NumPy has no bfloat16.
        return [leaf.float().numpy() if leaf.dtype == short else leaf.numpy() for leaf in leaves]

    return run


def _is_short(options: Mapping[str, Any]) -> bool:
    return options.get("dtype") in ("bfloat16", "float16")


def _need_compiler() -> None:
    """Inductor says the same at the end of a page."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:
        raise MissingDependencyError("no C++ compiler: install g++, or name one in CXX") from error


def _has_images(values: Iterable[Any]) -> bool:
    return any(value.ndim == _IMAGES for value in values)


def _leave_attention_alone() -> None:
    """Keep Inductor from looking for attention to replace by one operator.

    PyTorch 2.13 fails where it finds a key that was transposed in one step, as it comes from ONNX.
    """
    from torch._inductor.fx_passes import fuse_attention

    fuse_attention._sfdp_init = lambda *_: None
