"""Which operators have a Triton kernel on a target, and the one they have untuned."""

from __future__ import annotations

from tvm import tirx

from slipstream.graph.gpu.triton.contraction import Contraction, find_contraction
from slipstream.graph.gpu.triton.contraction_source import contraction_kernel, extents_of
from slipstream.graph.gpu.triton.expressions import InexpressibleError
from slipstream.graph.gpu.triton.kernel import is_available, with_kernel
from slipstream.graph.gpu.triton.tiles import Tiles
from slipstream.machine.cuda import CudaDevice
from slipstream.machine.target import Target

_TYPES = {"float16": ("float16",), "bfloat16": ("bfloat16",), "tf32": ("float32",)}
_FIRST_ARCHITECTURE = 80
_FIRST_OVERLAPPING = 90
# A product with a few vectors reads the matrix once: no tile is reused.
_FEWEST = 8
_USUAL_PROCESSORS = 108  # of a GPU that is named only


def find_template(func: tirx.PrimFunc, target: Target) -> Contraction | None:
    """The contraction of an operator whose products the target computes on tensor cores."""
    if target.gpu is None or target.dtype not in _TYPES or not is_available():
        return None
    if _generation(target.gpu) < _FIRST_ARCHITECTURE:
        return None
    contraction = find_contraction(func)
    if contraction is None or contraction.dtype not in _TYPES[target.dtype]:
        return None
    tiles = start_tiles(contraction, target)
    try:
        return contraction if tiles is not None and contraction_kernel(contraction, tiles) else None
    except InexpressibleError:
        return None


def start_tiles(contraction: Contraction, target: Target) -> Tiles | None:
    assert target.gpu is not None
    return extents_of(contraction).start(target.gpu.shared_bytes, target.gpu.multiprocessors or _USUAL_PROCESSORS)


def is_preferred(contraction: Contraction) -> bool:
    """Whether the kernel is better untuned than TVM's default program."""
    extents = extents_of(contraction)
    return min(extents.rows, extents.columns) >= _FEWEST


def schedule_with_triton(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """The operator with its kernel before any tuning; None if TVM's default program is better or there is no kernel."""
    contraction = find_template(func, target)
    if contraction is None or not is_preferred(contraction):
        return None
    tiles = start_tiles(contraction, target)
    if tiles is None:
        return None
    return with_kernel(func, contraction_kernel(contraction, tiles, overlaps=can_overlap(target)))


def can_overlap(target: Target) -> bool:
    """Whether a kernel can be launched while the one before it ends."""
    return target.gpu is not None and _generation(target.gpu) >= _FIRST_OVERLAPPING


def _generation(gpu: CudaDevice) -> int:
    return int(gpu.architecture.removeprefix("sm_").rstrip("af"))
