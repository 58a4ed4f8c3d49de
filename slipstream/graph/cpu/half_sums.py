"""Sums of products of float16 on a CPU: in float16 over a few terms, and of such partial sums in float32.

An instruction that multiplies and adds vectors of float16 rounds each sum to float16. A sum of n products is then wrong
by about 2**-11 * sqrt(n) / 2.4 of its size: 1.4 % for the 4,608 of a 3x3 convolution of 512 channels, 0.16 % for 64. So
a contraction becomes two blocks: partial sums of at most `MOST_TERMS` products in float16, and their total in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from slipstream.graph.describe.blocks import Block, factors_of
from slipstream.graph.extents import are_known
from slipstream.graph.schedule_blocks import DATA_PARALLEL, REDUCTION, divisors
from slipstream.graph.storage_type import rounding_copy

HALF = "float16"
_FLOAT = "float32"
MOST_TERMS = 64
# A sum whose number of terms has no fit divisor is not cut up to so many, and computed in float32 beyond.
_MOST_UNCUT = 512
_LEAST_TERMS = 16


def sum_halves(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with those of its contractions that multiply halves in half precision; the others stay as they are."""
    root = getattr(func.body, "block", None)
    if root is None or root.name_hint != "root":
        return func
    statements = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    new: list[Any] = []
    buffers: list[Any] = []
    for statement in statements:
        contraction = _read(statement)
        written, allocated = contraction.in_halves() if contraction is not None else ([statement], [])
        new += written
        buffers += allocated
    if not buffers:
        return func
    block = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(new), None, [*root.alloc_buffers, *buffers])
    return func.with_body(s_tir.SBlockRealize([], True, block))


@dataclass(frozen=True)
class _Contraction:
    """A block that adds products of two halves to a float32 element, one for each of its data-parallel variables."""

    block: Any
    factors: tuple[Any, Any]

    def in_halves(self) -> tuple[list[Any], list[Any]]:
        """(loop nests that compute the same, the buffers between them); no buffers where that is not possible."""
        block, result = self.block, self.block.body.buffer
        spatial = [i for i in block.iter_vars if int(i.iter_type) == DATA_PARALLEL]
        summed = [i for i in block.iter_vars if int(i.iter_type) == REDUCTION]
        inner = terms_at_once([int(i.dom.extent) for i in summed])
        operands, copies, buffers = self._operands()
        outer = [int(i.dom.extent) // own for i, own in zip(summed, inner, strict=True)]
        shape = [*(e for e in outer if e > 1), *(int(e) for e in result.shape)]
        partial = tirx.decl_buffer([_int(block, e) for e in shape], HALF, f"{result.name}_partial")
        nests = [*copies, self._partial(partial, spatial, summed, outer, inner, operands)]
        nests.append(self._total(partial, spatial, [e for e in outer if e > 1]))
        return nests, [*buffers, partial]

    def _operands(self) -> tuple[list[Any], list[Any], list[Any]]:
        """The tensors of halves to multiply; those that are not of halves yet are rounded once, into buffers."""
        operands, copies, buffers = [], [], []
        for factor in self.factors:
            operand = factor.source
            if str(operand.dtype) != HALF:
                operand = tirx.decl_buffer(list(operand.shape), HALF, f"{operand.name}_rounded")
                copies.append(rounding_copy(factor.source, operand, HALF, operand.name))
                buffers.append(operand)
            operands.append(operand)
        return operands, copies, buffers

    def _partial(
        self,
        partial: Any,
        spatial: Sequence[Any],
        summed: Sequence[Any],
        outer: Sequence[int],
        inner: Sequence[int],
        operands: Sequence[Any],
    ) -> Any:
        block = self.block
        chunks = [_variable(block, f"{i.var.name}_o") for i, count in zip(summed, outer, strict=True) if count > 1]
        axes = [_variable(block, i.var.name) for i in spatial]
        stepped = [own > 1 or many == 1 for many, own in zip(outer, inner, strict=True)]
        steps = [_variable(block, f"{i.var.name}_i") for i, here in zip(summed, stepped, strict=True) if here]
        left, within = iter(chunks), iter(steps)
        place = {i.var: axis for i, axis in zip(spatial, axes, strict=True)}
        for i, many, own, here in zip(summed, outer, inner, stepped, strict=True):
            terms = [next(left) * _int(block, own) if own > 1 else next(left)] if many > 1 else []
            terms += [next(within)] if here else []
            place[i.var] = terms[0] if len(terms) == 1 else terms[0] + terms[1]
        at = [*chunks, *axes]
        loads = [
            tirx.BufferLoad(operand, [_replaced(index, place) for index in factor.indices])
            for operand, factor in zip(operands, self.factors, strict=True)
        ]
        own_extents = [own for own, here in zip(inner, stepped, strict=True) if here]
        extents = [*(e for e in outer if e > 1), *(int(i.dom.extent) for i in spatial), *own_extents]
        return _nest(
            block,
            block.name_hint,
            list(zip([*at, *steps], extents, strict=True)),
            len(steps),
            [_element(block, load.source, load.indices) for load in loads],
            tirx.BufferStore(partial, tirx.BufferLoad(partial, at) + loads[0] * loads[1], at),
            tirx.BufferStore(partial, tirx.FloatImm(HALF, 0.0), at),
            block.annotations,
        )

    def _total(self, partial: Any, spatial: Sequence[Any], outer: Sequence[int]) -> Any:
        block, result = self.block, self.block.body.buffer
        axes = [_variable(block, i.var.name) for i in spatial]
        chunks = [_variable(block, f"chunk_{place}") for place in range(len(outer))]
        value = tirx.Cast(_FLOAT, tirx.BufferLoad(partial, [*chunks, *axes]))
        loops = [*zip(axes, (int(i.dom.extent) for i in spatial), strict=True), *zip(chunks, outer, strict=True)]
        return _nest(
            block,
            f"{block.name_hint}_total",
            loops,
            len(chunks),
            [_element(block, partial, [*chunks, *axes])],
            tirx.BufferStore(result, tirx.BufferLoad(result, axes) + value if chunks else value, axes),
            tirx.BufferStore(result, tirx.FloatImm(_FLOAT, 0.0), axes) if chunks else None,
        )


def terms_at_once(extents: Sequence[int]) -> list[int]:
    """How far along each axis of a reduction products are added up in float16: whole axes from the last one on, then a
    divisor of one. None of them (all 1) where that would be too few or too many."""
    inner = [1] * len(extents)
    terms = 1
    for place in reversed(range(len(extents))):
        inner[place] = max(divisors(extents[place], MOST_TERMS // terms))
        terms *= inner[place]
        if inner[place] < extents[place]:
            break
    if terms >= _LEAST_TERMS or terms == math.prod(extents):
        return inner
    return list(extents) if math.prod(extents) <= _MOST_UNCUT else [1] * len(extents)


def _read(statement: Any) -> _Contraction | None:
    """The contraction in a loop nest whose loops are the variables of its block, in the same order."""
    loops = []
    while isinstance(statement, tirx.For):
        loops.append(statement.loop_var)
        statement = statement.body
    block = statement.block if isinstance(statement, s_tir.SBlockRealize) else None
    if block is None or len(block.alloc_buffers) or len(loops) != len(block.iter_vars):
        return None
    if not all(value.same_as(loop) for value, loop in zip(statement.iter_values, loops, strict=True)):
        return None
    factors = factors_of(Block(block))
    summand = Block(block).summand
    if not factors or summand is None or not (_is_half(summand.a) and _is_half(summand.b)):
        return None
    extents = [i.dom.extent for i in block.iter_vars]
    spatial = [i.var for i in block.iter_vars if int(i.iter_type) == DATA_PARALLEL]
    indices = list(block.body.indices)
    if not are_known(extents) or str(block.body.buffer.dtype) != _FLOAT:
        return None
    if len(indices) != len(spatial) or not all(a.same_as(b) for a, b in zip(indices, spatial, strict=True)):
        return None
    summed = [int(i.dom.extent) for i in block.iter_vars if int(i.iter_type) == REDUCTION]
    if math.prod(terms_at_once(summed)) == 1 and math.prod(summed) > 1:
        return None
    return _Contraction(block, tuple(factors))


def _is_half(factor: Any) -> bool:
    """Whether a factor is an element rounded to float16, as the pass before writes it: in float32 again."""
    return isinstance(factor, tirx.Cast) and str(factor.value.ty.dtype) == HALF


def _replaced(expression: Any, new: dict[Any, Any]) -> Any:
    return tvm_ffi.structural_map(expression, ((tvm.ir.Var, lambda variable: new.get(variable, variable)),))


def _index_type(block: Any) -> str:
    return str(block.iter_vars[0].var.ty.dtype)


def _int(block: Any, value: int) -> Any:
    return tirx.IntImm(_index_type(block), value)


def _variable(block: Any, name: str) -> Any:
    return tirx.Var(name, _index_type(block))


def _element(block: Any, buffer: Any, at: Sequence[Any]) -> Any:
    return tirx.BufferRegion(buffer, [tvm.ir.Range.from_min_extent(index, _int(block, 1)) for index in at])


def _nest(
    like: Any,
    name: str,
    loops: Sequence[tuple[Any, int]],
    summed: int,
    reads: list[Any],
    body: Any,
    init: Any,
    annotations: Any = None,
) -> Any:
    """A block in a loop for each of its variables, the last `summed` of which it sums over."""
    kinds = [DATA_PARALLEL] * (len(loops) - summed) + [REDUCTION] * summed
    variables = [
        tirx.IterVar(tvm.ir.Range(_int(like, 0), _int(like, extent)), variable, kind)
        for (variable, extent), kind in zip(loops, kinds, strict=True)
    ]
    writes = [_element(like, body.buffer, body.indices)]
    counters = [_variable(like, f"i_{variable.name}") for variable, _ in loops]
    block = s_tir.SBlock(variables, reads, writes, name, body, init, [], [], annotations or {})
    nest: Any = s_tir.SBlockRealize(counters, True, block)
    for counter, (_, extent) in reversed(list(zip(counters, loops, strict=True))):
        nest = tirx.For(counter, _int(like, 0), _int(like, extent), tirx.ForKind.SERIAL, nest)
    return nest
