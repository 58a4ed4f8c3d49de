"""Which template computes an operator on a target, what it leaves to decide, and the kernel of given decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from functools import partial

from tvm import tirx

from slipstream.graph.gpu.triton import attention_source, reduction_source, tiles
from slipstream.graph.gpu.triton.attention import Attention, find_attention
from slipstream.graph.gpu.triton.contraction import Contraction, find_contraction
from slipstream.graph.gpu.triton.contraction_source import contraction_kernel, extents_of
from slipstream.graph.gpu.triton.expressions import InexpressibleError
from slipstream.graph.gpu.triton.kernel import Kernel, with_kernel
from slipstream.graph.gpu.triton.reduction import Reduction, find_reduction
from slipstream.machine.cuda import CudaDevice
from slipstream.machine.target import Target

Values = tuple[int, ...]

# The type of the factors of products, by what a model is computed in.
_FACTORS = {"float16": "float16", "bfloat16": "bfloat16", "tf32": "float32"}
_FIRST_OVERLAPPING = 90
# A product with a few vectors reads the matrix once: no tile is reused.
_FEWEST = 8
_USUAL_PROCESSORS = 108  # of a GPU that is named only


@dataclass(frozen=True)
class Template:
    """A template for one operator. Values are in the order of `candidates`, from which each is taken.

    `refusal` says why a GPU cannot run values, or nothing. `start` are good ones. It is `alone` where MetaSchedule's
    sketches are not worth a trial.
    """

    name: str
    candidates: Mapping[str, Values]
    start: Values
    refusal: Callable[[Values], str]
    kernel: Callable[[Values], Kernel]
    alone: bool = True


def find_template(func: tirx.PrimFunc, target: Target) -> Template | None:
    """The template for an operator whose products the target computes on tensor cores, if Triton is installed."""
    if target.gpu is None or target.dtype not in _FACTORS or not target.has_triton:
        return None
    for read in (_of_contraction, _of_attention, _of_reduction):
        try:
            template = read(func, target.gpu, _FACTORS[target.dtype])
            if template is not None and template.kernel(template.start):
                return template
        except InexpressibleError:
            continue
    return None


def schedule_with_triton(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """The operator with its kernel before any tuning; None if there is no template for it."""
    template = find_template(func, target)
    return None if template is None else with_kernel(func, template.kernel(template.start))


def _of_contraction(func: tirx.PrimFunc, gpu: CudaDevice, dtype: str) -> Template | None:
    contraction = find_contraction(func)
    if contraction is None or contraction.dtype != dtype:
        return None
    extents = extents_of(contraction)
    if min(extents.rows, extents.columns) < _FEWEST:
        return None
    start = extents.start(gpu.shared_bytes, gpu.multiprocessors or _USUAL_PROCESSORS)
    if start is None:
        return None
    return Template(
        "contraction",
        tiles.CANDIDATES,
        astuple(start),
        lambda values: extents.refusal(tiles.Tiles(*values), gpu.shared_bytes),
        partial(_contraction_kernel, contraction, gpu),
    )


def _contraction_kernel(contraction: Contraction, gpu: CudaDevice, values: Values) -> Kernel:
    return contraction_kernel(contraction, tiles.Tiles(*values), overlaps=_overlaps(gpu))


def _of_attention(func: tirx.PrimFunc, gpu: CudaDevice, dtype: str) -> Template | None:
    attention = find_attention(func)
    if attention is None or attention.dtype != dtype:
        return None
    extents = attention_source.AttentionExtents.of(attention)
    start = extents.start(gpu.shared_bytes, gpu.multiprocessors or _USUAL_PROCESSORS)
    if start is None:
        return None
    return Template(
        "attention",
        attention_source.CANDIDATES,
        astuple(start),
        lambda values: extents.refusal(attention_source.AttentionTiles(*values), gpu.shared_bytes),
        partial(_attention_kernel, attention, extents, gpu),
    )


def _attention_kernel(
    attention: Attention, extents: attention_source.AttentionExtents, gpu: CudaDevice, values: Values
) -> Kernel:
    chosen = attention_source.AttentionTiles(*values)
    overlaps = _overlaps(gpu)
    return Kernel(
        source=attention_source.attention_source(attention, chosen, overlaps=overlaps),
        types=tuple(str(parameter.ty.dtype) for parameter in attention.parameters),
        grid=extents.grid(chosen),
        warps=chosen.warps,
        stages=chosen.stages,
        overlaps=overlaps,
    )


def _of_reduction(func: tirx.PrimFunc, gpu: CudaDevice, dtype: str) -> Template | None:
    del dtype  # sums of rows are computed in float32 whatever their type
    reduction = find_reduction(func)
    if reduction is None:
        return None
    extents = reduction_source.RowExtents.of(reduction)
    start = extents.start(gpu.multiprocessors or _USUAL_PROCESSORS)
    if start is None:
        return None
    return Template(
        "reduction",
        reduction_source.CANDIDATES,
        astuple(start),
        lambda values: extents.refusal(reduction_source.RowTiles(*values)),
        partial(_reduction_kernel, reduction, gpu),
        # Of norms and softmaxes MetaSchedule's programs often read wrong addresses.
        alone=extents.stages > 1,
    )


def _reduction_kernel(reduction: Reduction, gpu: CudaDevice, values: Values) -> Kernel:
    tiles = reduction_source.RowTiles(*values)
    return reduction_source.reduction_kernel(reduction, tiles, overlaps=_overlaps(gpu))


def _overlaps(gpu: CudaDevice) -> bool:
    """Whether a kernel can be launched while the one before it ends."""
    return gpu.capability >= _FIRST_OVERLAPPING
