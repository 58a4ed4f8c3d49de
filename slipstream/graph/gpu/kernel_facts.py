"""What one legalised function computes, as far as it decides which functions can share a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import tvm
from tvm import relax, s_tir, tirx

from slipstream.graph.describe.blocks import Block, TensorLoad, blocks_of, convolution_of, matmul_of, shape_of
from slipstream.graph.describe.kinds import kind_of
from slipstream.graph.extents import takes_known_shapes
from slipstream.tvm_bridge.nodes import nodes

_FREE_CALLS = frozenset({"if_then_else", "likely", "reinterpret"})
_ADDRESS_CALLS = ("access_ptr", "address_of", "extern", "packed")
_MOVES = ("reshape", "transpose", "copy")


class Role(Enum):
    """`POINTWISE`: every element by itself; `REDUCTION`: matmul, pool, softmax, norm; `OPAQUE`: anything else."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    OPAQUE = "opaque"


@dataclass(frozen=True)
class KernelFacts:
    """Of a function with one result, its last parameter.

    `contracts`: it sums products of two tensors. `copies`: each element is one of the argument's, at a known place;
    `moves`: each of the argument's goes to one place.
    `is_view`: the result lies in memory as the argument does. `gathers`: elements are chosen by other elements, or
    several tensors are joined. `costly`: it calls functions such as exp. `aligned` are the arguments of which an
    element is read only for the element of the result at the same place. `slides`: windows that overlap are summed up.
    """

    role: Role
    elements: int
    contracts: bool = False
    copies: bool = False
    moves: bool = False
    is_view: bool = False
    gathers: bool = False
    costly: bool = False
    slides: bool = False
    aligned: frozenset[int] = frozenset()


_OPAQUE = KernelFacts(Role.OPAQUE, 0)


def facts_of(func: tirx.PrimFunc) -> KernelFacts:
    """Reads `func`; whatever is not understood is opaque."""
    blocks = list(blocks_of(func))
    if not blocks or not reads_by_index(func) or not takes_known_shapes(func):
        return _OPAQUE
    written = [p for p in func.params if any(block.writes(p) for block in blocks)]
    if len(written) != 1 or not written[0].same_as(func.params[-1]):
        return _OPAQUE
    elements = prod(shape_of(func.params[-1]))
    if any(block.reductions for block in blocks):
        if not _is_affine(func):
            return _OPAQUE
        contracts = any(matmul_of(block) or convolution_of(block) for block in blocks)
        return KernelFacts(Role.REDUCTION, elements, contracts, costly=True, slides=any(map(_slides, blocks)))
    if any(block.store is None or not _writes_in_order(block) for block in blocks):
        return _OPAQUE
    return KernelFacts(
        Role.POINTWISE,
        elements,
        copies=len(func.params) == 2 and _copies(blocks),
        moves=_has_one_argument(func) and _copies(blocks) and all(kind_of(block) in _MOVES for block in blocks),
        is_view=_has_one_argument(func) and bool(relax.analysis.has_reshape_pattern(func)),
        gathers=any(_gathers(block) for block in blocks),
        costly=any(_call_name(call) not in _FREE_CALLS for b in blocks for call in nodes(b.stmt.body, tvm.ir.Call)),
        aligned=_aligned(func, blocks, elements),
    )


def _slides(block: Block) -> bool:
    convolution = convolution_of(block)
    return convolution is not None and any(window.size > 1 for window in convolution.windows)


def reads_by_index(func: tirx.PrimFunc) -> bool:
    """Whether the function reads and writes tensors only by index, never by address."""
    return not any(map(takes_address, nodes(func.body, tvm.ir.Call))) and not any(
        block.match_buffers for block in nodes(func.body, s_tir.SBlock)
    )


def takes_address(call: Any) -> bool:
    """Whether a call is of a function that takes addresses, or makes one."""
    return any(part in _call_name(call) for part in _ADDRESS_CALLS)


def _call_name(call: Any) -> str:
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]


def _is_affine(func: tirx.PrimFunc) -> bool:
    """Whether every loop surrounds a block whose axes are data-parallel or reductions."""
    root = getattr(func.body, "block", None)
    return (
        root is not None
        and root.name_hint == "root"
        and all(int(i.iter_type) in (0, 2) for b in nodes(func.body, s_tir.SBlock) for i in b.iter_vars)
        and not nodes(func.body, (tirx.While, tirx.IfThenElse))
        and all(int(loop.kind) == 0 for loop in nodes(func.body, tirx.For))
    )


def _writes_in_order(block: Block) -> bool:
    return _in_order(block.store.indices, block) if block.store is not None else False


def _in_order(indices: Any, block: Block) -> bool:
    """Whether the indices are the block's axes, those of extent 1 aside."""
    wide = [axis for axis, size in block.axes.items() if size > 1]
    kept = []
    for index in indices:
        if isinstance(index, tirx.IntImm) and int(index) == 0:
            continue
        if not isinstance(index, tvm.ir.Var) or index not in block.axes:
            return False
        if block.axes[index] > 1:
            kept.append(index)
    return len(kept) == len(wide) and all(a.same_as(b) for a, b in zip(kept, wide, strict=True))


def _copies(blocks: list[Block]) -> bool:
    return all(block.store is not None and isinstance(block.store.value, TensorLoad) for block in blocks)


def _has_one_argument(func: tirx.PrimFunc) -> bool:
    """Whether there is one, with as many elements as the result."""
    return len(func.params) == 2 and prod(shape_of(func.params[0])) == prod(shape_of(func.params[1]))


def _gathers(block: Block) -> bool:
    loads = block.loads
    return any(nodes(index, TensorLoad) for load in loads for index in load.indices) or kind_of(block) == "concat"


def _aligned(func: tirx.PrimFunc, blocks: list[Block], elements: int) -> frozenset[int]:
    loads = [(load, block) for block in blocks for load in block.loads]
    inner = [(load, block) for load, block in loads if not any(load.source.same_as(p) for p in func.params)]
    if not all(_in_order(load.indices, block) for load, block in inner):
        return frozenset()
    return frozenset(
        place
        for place, parameter in enumerate(func.params[:-1])
        if prod(shape_of(parameter)) == elements
        and all(_in_order(load.indices, block) for load, block in loads if load.source.same_as(parameter))
    )
