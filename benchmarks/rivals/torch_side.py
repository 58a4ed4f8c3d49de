"""PyTorch: eager, compiled at its defaults, and compiled with max-autotune and frozen weights.

The model is translated from ONNX operator by operator. Images and weights once as they are, once with channels last.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels last"
_IMAGES = 4  # dimensions of a batch of them


def layouts(side: str, inputs: str) -> Sequence[str]:
    """Compiling takes long, so models of images are compiled with channels last only, which has been the faster way."""
    with np.load(inputs) as feeds:
        if not _has_images(feeds.values()):
            return (CONTIGUOUS,)
    return (CONTIGUOUS, CHANNELS_LAST) if side == "torch" else (CHANNELS_LAST,)


def open_torch(job: Mapping[str, Any], feeds: dict[str, Any]) -> Callable[[], list[Any]]:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(job["options"]["work"], "inductor"))
    import torch

    from slipstream.artifact.baselines import torch_module

    side = job["name"]
    torch.set_num_threads(job["threads"])
    if side != "torch" and not _has_images(feeds.values()):
        _leave_attention_alone()
    module = torch_module(Path(job["options"]["clean"]))
    tensors = [torch.from_numpy(value) for value in feeds.values()]
    if job["setting"] == CHANNELS_LAST:
        module = module.to(memory_format=torch.channels_last)
        tensors = [t.to(memory_format=torch.channels_last) if t.ndim == _IMAGES else t for t in tensors]
    if side == "torch.compile":
        module = torch.compile(module, fullgraph=True)
    if side == "torch.compile max-autotune":
        from torch._inductor import config

        config.freezing = True
        module = torch.compile(module, fullgraph=True, mode="max-autotune")

    def run() -> list[Any]:
        with torch.inference_mode():
            return [leaf.numpy() for leaf in torch.utils._pytree.tree_leaves(module(*tensors))]

    return run


def _has_images(values: Iterable[Any]) -> bool:
    return any(value.ndim == _IMAGES for value in values)


def _leave_attention_alone() -> None:
    """Keep Inductor from looking for attention to replace by one operator.

    PyTorch 2.13 fails where it finds a key that was transposed in one step, as it comes from ONNX.
    """
    from torch._inductor.fx_passes import fuse_attention

    fuse_attention._sfdp_init = lambda *_: None
