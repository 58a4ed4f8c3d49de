"""Calling a model on a GPU in step with PyTorch's streams, without waiting on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.artifact.loaded import CompiledModel

# What programs may assume: they read several elements at a time.
_ALIGNMENT = 64


def is_capturing() -> bool:
    """Whether the current stream records a CUDA graph: a model cannot be part of one."""
    import torch

    return bool(torch.cuda.is_current_stream_capturing())


def run_on_gpu(model: CompiledModel, inputs: Sequence[Any]) -> list[Any]:
    """The model's outputs, ordered after what the current stream did and before what it will do.

    TVM launches on the device's default stream, and takes the memory of an output back when its last reference goes.
    If the current stream is that one, PyTorch's own rules for memory hold and nothing is copied. Another stream could
    still be reading then: it gets copies in PyTorch's memory.
    """
    import torch

    device = inputs[0].device
    with torch.cuda.device(device):
        current, default = torch.cuda.current_stream(), torch.cuda.default_stream()
        dense = [_dense(tensor.detach()) for tensor in inputs]
        if current == default:
            return [torch.from_dlpack(result) for result in model(*dense)]
        outputs = [torch.empty(o.shape, dtype=getattr(torch, o.dtype), device=device) for o in model.outputs]
        default.wait_stream(current)
        with torch.cuda.stream(default):
            for output, result in zip(outputs, model(*dense), strict=True):
                output.copy_(torch.from_dlpack(result))
        current.wait_stream(default)
        return outputs


def _dense(tensor: Any) -> Any:
    """Contiguous and aligned; the tensor itself if it is."""
    import torch

    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone(memory_format=torch.contiguous_format)
