"""PyTorch: eager, compiled at its defaults, and compiled with max-autotune and frozen weights.

The model is translated from ONNX operator by operator. Images and weights once as they are, once with channels last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.rivals.contender import Run, feeds, wanted, work_folder

CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels last"
_IMAGES = 4  # dimensions of a batch of them


def environment(threads: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def variants(side: str, job: Mapping[str, Any]) -> dict[str, Run]:
    import os

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(work_folder(job) / "inductor")
    import onnx
    import torch

    from slipstream.frontends.onnx_as_torch import as_torch

    torch.set_num_threads(job["threads"])
    values = feeds(job)
    if side != "torch" and not _has_images(values.values()):
        _leave_attention_alone()

    def prepared(layout: str) -> Run:
        module = as_torch(onnx.load(job["clean"]))
        tensors = [torch.from_numpy(value) for value in values.values()]
        if layout == CHANNELS_LAST:
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

    return {layout: prepared(layout) for layout in wanted(job, _layouts(side, values.values()))}


def _layouts(side: str, values: Iterable[Any]) -> list[str]:
    """Compiling takes long, so models of images are compiled with channels last only, which has been the faster way."""
    if not _has_images(values):
        return [CONTIGUOUS]
    return [CONTIGUOUS, CHANNELS_LAST] if side == "torch" else [CHANNELS_LAST]


def _has_images(values: Iterable[Any]) -> bool:
    return any(value.ndim == _IMAGES for value in values)


def _leave_attention_alone() -> None:
    """Keep Inductor from looking for attention to replace by one operator.

    PyTorch 2.13 fails where it finds a key that was transposed in one step, as it comes from ONNX.
    """
    from torch._inductor.fx_passes import fuse_attention

    fuse_attention._sfdp_init = lambda *_: None
