"""Reads the sizes of a fused function's blocks (convolution, matmul, windows) from iteration domains and indices.

Names are not used: equal computations give equal results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import detect_linear_equation
from tvm.tirx.analysis import undefined_vars

from slipstream.tvm_bridge.nodes import nodes

TensorLoad = tvm.ir.expr.TensorLoad

_REDUCERS = {tirx.Add: "sum", tirx.Mul: "prod", tirx.Max: "max", tirx.Min: "min"}

_REDUCTION = 2


@dataclass(frozen=True)
class Block:
    """A block of TIR: a loop nest around one statement. Its first `parts` variables tell partial sums apart, which
    another block adds up: they count as reductions."""

    stmt: s_tir.SBlock
    parts: int = 0

    @cached_property
    def axes(self) -> dict[Any, int]:
        """Extent of each data-parallel iteration variable."""
        return {i.var: extent(i.dom.extent) for i in self.stmt.iter_vars if i.var not in self.reductions}

    @cached_property
    def reductions(self) -> dict[Any, int]:
        """Extent of each reduction variable."""
        return {
            i.var: extent(i.dom.extent)
            for place, i in enumerate(self.stmt.iter_vars)
            if int(i.iter_type) == _REDUCTION or place < self.parts
        }

    @property
    def store(self) -> Any | None:
        """The one assignment that the block consists of, if it does."""
        return self.stmt.body if isinstance(self.stmt.body, tirx.BufferStore) else None

    @property
    def reducer(self) -> str | None:
        """How a reduction combines its elements."""
        return _REDUCERS.get(type(self.store.value)) if self.store is not None else None

    @cached_property
    def summand(self) -> Any | None:
        """What a reduction adds up (or multiplies, or takes the maximum of)."""
        if self.store is None or self.reducer is None:
            return None
        terms = (self.store.value.a, self.store.value.b)
        new = [term for term in terms if not (isinstance(term, TensorLoad) and self.writes(term.source))]
        return new[0] if len(new) == 1 else None

    @cached_property
    def loads(self) -> list[Any]:
        """Every tensor element the block reads, except its own running result."""
        return [load for load in nodes(self.stmt.body, TensorLoad) if not self.writes(load.source)]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the first tensor read, or of the one written if none is."""
        return shape_of(self.loads[0].source) if self.loads else self.output_shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the tensor written."""
        return shape_of(self.stmt.writes[0].source) if self.stmt.writes else ()

    def writes(self, buffer: Any) -> bool:
        """Whether `buffer` is written here."""
        return any(region.source.same_as(buffer) for region in self.stmt.writes)

    def reads(self, buffer: Any) -> bool:
        """Whether `buffer` is read here."""
        return any(load.source.same_as(buffer) for load in self.loads)


@dataclass(frozen=True)
class Window:
    """An axis along which a kernel slides: input index = `axis` * stride + `offset` * dilation."""

    axis: Any
    offset: Any
    dimension: int
    output: int
    size: int
    stride: int
    dilation: int


@dataclass(frozen=True)
class Convolution:
    """Sizes of a convolution over any number of axes, in any layout."""

    windows: list[Window]
    batch: int
    in_channels: int
    out_channels: int
    groups: int


@dataclass(frozen=True)
class Matmul:
    """Sizes of a product of two matrices, done `batch` times."""

    batch: int
    rows: int
    inner: int
    columns: int


def blocks_of(func: tirx.PrimFunc) -> Iterator[Block]:
    """The innermost blocks in program order."""
    for stmt in nodes(func.body, s_tir.SBlock):
        if not nodes(stmt.body, s_tir.SBlock):
            yield Block(stmt)


def whole_sums(blocks: Sequence[Block]) -> list[Block]:
    """The blocks with a contraction in partial sums (see `graph/cpu/half_sums.py`) and their total as one."""
    found: list[Block] = []
    for block in blocks:
        if found and adds_partial_sums(block.stmt, found[-1].stmt):
            found[-1] = Block(found[-1].stmt, len(block.reductions))
        elif not (found and _widens(block, found[-1])):
            found.append(block)
    return found


def adds_partial_sums(block: Any, before: Any) -> bool:
    """Whether a block does nothing but add up, in float32, the elements of float16 that the block before it wrote."""
    parts, total = before.writes[0].source if before.writes else None, Block(block).summand
    return (
        bool(Block(block).reductions)
        and Block(block).reducer == "sum"
        and isinstance(total, tirx.Cast)
        and isinstance(total.value, TensorLoad)
        and total.value.source.same_as(parts)
        and bool(factors_of(Block(before)))
    )


def _widens(block: Block, before: Block) -> bool:
    """Whether a block only converts what a contraction of halves computed."""
    value = block.store.value if block.store is not None else None
    return (
        isinstance(value, tirx.Cast)
        and isinstance(value.value, TensorLoad)
        and before.writes(value.value.source)
        and bool(factors_of(before))
        and str(value.value.source.dtype) == "float16"
    )


def convolution_of(block: Block) -> Convolution | None:
    """The sizes, if the block slides one tensor over another."""
    for data, weight in permutations(factors_of(block), 2):
        windows = windows_of(block, data, weight)
        if windows:
            return _convolution(block, data, variables_in(*weight.indices), windows)
    return None


def _convolution(block: Block, data: Any, in_weight: set[Any], windows: list[Window]) -> Convolution:
    sliding = {variable for window in windows for variable in (window.axis, window.offset)}
    filters = {v: size for v, size in block.axes.items() if v in in_weight}
    channels = {v: size for v, size in block.reductions.items() if v not in sliding}
    in_channels = prod(
        size
        for size, index in zip(shape_of(data.source), data.indices, strict=True)
        if variables_in(index) & {*filters, *channels}
    )
    return Convolution(
        windows,
        batch=prod(size for v, size in block.axes.items() if v not in sliding and v not in filters),
        in_channels=in_channels,
        out_channels=prod(filters.values()),
        groups=max(1, in_channels // max(1, prod(channels.values()))),
    )


def matmul_of(block: Block) -> Matmul | None:
    """The sizes, if the block multiplies two tensors and sums up; an element-wise product is no matmul."""
    if not (factors := factors_of(block)):
        return None
    left, right = (variables_in(*factor.indices) for factor in factors)
    rows = [size for v, size in block.axes.items() if v in left - right]
    columns = [size for v, size in block.axes.items() if v in right - left]
    if not rows and not columns:
        return None
    batch = prod(size for v, size in block.axes.items() if v in left & right)
    return Matmul(batch, prod(rows), prod(block.reductions.values()), prod(columns))


def windows_of(block: Block, data: Any, weight: Any | None = None) -> list[Window]:
    """The axes along which windows of `data` are reduced; one that walks `weight` too is not among them."""
    fixed = variables_in(*weight.indices) if weight is not None else set()
    windows = []
    for dimension, index in enumerate(data.indices):
        used = variables_in(index)
        axes = [v for v in block.axes if v in used - fixed]
        offsets = [v for v in block.reductions if v in used]
        steps = steps_of(index, axes + offsets)
        if len(axes) == len(offsets) == 1 and steps:
            sizes = block.axes[axes[0]], block.reductions[offsets[0]]
            windows.append(Window(axes[0], offsets[0], dimension, *sizes, *steps))
    return windows


def steps_of(index: Any, variables: list[Any]) -> list[int]:
    """How far each variable moves an index that is linear in all of them; empty if it is not."""
    steps = list(detect_linear_equation(index, variables))[:-1]
    return [int(step) for step in steps] if all(isinstance(step, tirx.IntImm) for step in steps) else []


def factors_of(block: Block) -> list[Any]:
    """The two tensor elements whose products a block sums up; empty if it does anything else."""
    if not block.reductions or not isinstance(block.summand, tirx.Mul) or block.reducer != "sum":
        return []
    factors = [_without_cast(factor) for factor in (block.summand.a, block.summand.b)]
    return factors if all(isinstance(factor, TensorLoad) for factor in factors) else []


def variables_in(*expressions: Any) -> set[Any]:
    """The variables that expressions use."""
    return {variable for expression in expressions for variable in undefined_vars(expression)}


def _without_cast(value: Any) -> Any:
    while isinstance(value, tirx.Cast):
        value = value.value
    return value


def shape_of(buffer: Any) -> tuple[int, ...]:
    """A buffer's shape, in the terms of `extent`."""
    return tuple(map(extent, buffer.ty.shape))


def extent(value: Any) -> int:
    """An extent to multiply with: 1 if it is not known before the run."""
    return int(value) if isinstance(value, tirx.IntImm) else 1
