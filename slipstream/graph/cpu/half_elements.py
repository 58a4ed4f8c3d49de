"""Element-wise arithmetic on halves in half precision: a bias, a ReLU, a shortcut, the maximum of a window.

A vector of halves has twice the elements of one in float32, and converting eight of them takes as long as sixteen
multiplications. So additions, multiplications and comparisons of halves are not converted, a few in a row: each rounds
as storing its result would. Functions that call exp and the like, or sum up in float32, stay in float32.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from slipstream.graph.describe.blocks import Block, TensorLoad, blocks_of, factors_of
from slipstream.tvm_bridge.nodes import nodes

_HALF, _FLOAT = "float16", "float32"
_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")
_ROUNDING = (tirx.Add, tirx.Sub, tirx.Mul)
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_LARGEST = 65504.0
# Factors that neither overflow nor lose digits to the smallest halves.
_FACTORS = (2.0**-10, 2.0**10)
# Roundings of one statement: more of them are a polynomial, whose digits matter.
_MOST_ROUNDINGS = 2


def compute_in_halves(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its element-wise blocks of halves in half precision."""
    root = getattr(func.body, "block", None)
    if root is None or root.name_hint != "root" or not all(map(_is_simple, blocks_of(func))):
        return func
    narrow = _Narrow(root.alloc_buffers)
    body = tvm_ffi.structural_map(root.body, ((s_tir.SBlock, narrow.block),))
    buffers = [narrow.new.get(buffer, buffer) for buffer in root.alloc_buffers]
    block = s_tir.SBlock([], [], [], "root", body, None, buffers)
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _is_simple(block: Block) -> bool:
    """Whether a block is element-wise, a maximum or minimum, or a contraction of halves, and calls no function."""
    if block.store is None or any(
        call.op != _IF_THEN_ELSE and not _is_abs(call) for call in nodes(block.stmt, tvm.ir.Call)
    ):
        return False
    value = block.store.value.value if isinstance(block.store.value, tirx.Cast) else block.store.value
    return not block.reductions or isinstance(value, tirx.Max | tirx.Min) or _multiplies_halves(block)


def _multiplies_halves(block: Block) -> bool:
    buffers = [region.source for region in block.stmt.writes] + [factor.source for factor in factors_of(block)]
    return len(buffers) > 1 and all(str(buffer.dtype) == _HALF for buffer in buffers)


def _is_abs(call: Any) -> bool:
    return str(call.op.name).rpartition(".")[2] in ("abs", "fabs")


class _Narrow:
    """Rewrites blocks in their order. `new` are the buffers between them that hold halves from then on."""

    def __init__(self, between: Any) -> None:
        self.new: dict[Any, Any] = {}
        self._between = list(between)

    def block(self, block: Any) -> Any:
        store = block.body
        if isinstance(store, tirx.BufferStore):
            store = self._store(store, bool(Block(block).reductions))
        reads, writes = (
            [tirx.BufferRegion(self.new.get(region.source, region.source), region.region) for region in regions]
            for regions in (block.reads, block.writes)
        )
        kept = block.init, block.alloc_buffers, block.match_buffers, block.annotations
        return s_tir.SBlock(block.iter_vars, reads, writes, block.name_hint, store, *kept)

    def _store(self, store: Any, reduces: bool) -> Any:
        buffer, value = store.buffer, store.value
        if str(buffer.dtype) == _HALF and isinstance(value, tirx.Cast):
            value = value.value
        elif str(buffer.dtype) != _FLOAT or reduces or not any(buffer.same_as(b) for b in self._between):
            return tirx.BufferStore(buffer, self._read(store.value), store.indices)
        narrowed = self._narrow(_unlimited(value))
        if narrowed is None or narrowed[1] > (0 if reduces else _MOST_ROUNDINGS):
            return tirx.BufferStore(buffer, self._read(store.value), store.indices)
        if str(buffer.dtype) == _FLOAT:
            self.new[buffer] = tirx.decl_buffer(list(buffer.shape), _HALF, buffer.name)
        return tirx.BufferStore(self.new.get(buffer, buffer), narrowed[0], store.indices)

    def _read(self, value: Any) -> Any:
        """The expression with halves converted where they are read."""

        def load(each: Any) -> Any:
            new = self.new.get(each.source)
            return each if new is None else tirx.Cast(_FLOAT, tirx.BufferLoad(new, each.indices))

        return tvm_ffi.structural_map(value, ((TensorLoad, load),))

    def _narrow(self, value: Any, *, factor: bool = False) -> tuple[Any, int] | None:
        """A float32 expression in halves and how often that rounds; None where it has to stay as it is."""
        if isinstance(value, tirx.Cast):
            return (value.value, 0) if str(value.value.ty.dtype) == _HALF else None
        if isinstance(value, TensorLoad):
            return self._element(value, factor)
        if isinstance(value, tirx.FloatImm):
            size = abs(float(value.value))
            fits = size == 0 or _FACTORS[0] <= size <= (_FACTORS[1] if factor else _LARGEST)
            return (tirx.FloatImm(_HALF, float(value.value)), 0) if fits else None
        if isinstance(value, (*_ROUNDING, tirx.Max, tirx.Min)):
            is_product = isinstance(value, tirx.Mul)
            sides = [self._narrow(side, factor=is_product) for side in (value.a, value.b)]
            if sides[0] is None or sides[1] is None:
                return None
            (a, first), (b, second) = sides[0], sides[1]
            return type(value)(a, b), first + second + isinstance(value, _ROUNDING)
        return self._choice(value)

    def _choice(self, value: Any) -> tuple[Any, int] | None:
        if isinstance(value, tirx.Select):
            condition, yes, no = value.condition, value.true_value, value.false_value
        elif isinstance(value, tvm.ir.Call) and value.op == _IF_THEN_ELSE:
            condition, yes, no = value.args
        else:
            return None
        condition = self._condition(condition)
        sides = self._narrow(yes), self._narrow(no)
        if condition is None or sides[0] is None or sides[1] is None:
            return None
        make = tirx.Select if isinstance(value, tirx.Select) else tirx.if_then_else
        return make(condition, sides[0][0], sides[1][0]), max(sides[0][1], sides[1][1])

    def _condition(self, condition: Any) -> Any | None:
        """One of indices stays as it is; of two elements, both are halves."""
        if not nodes(condition, TensorLoad):
            return condition
        if isinstance(condition, _COMPARISONS):
            a, b = self._narrow(condition.a), self._narrow(condition.b)
            if a is not None and b is not None and a[1] == b[1] == 0:
                return type(condition)(a[0], b[0])
        return None

    def _element(self, load: Any, factor: bool) -> tuple[Any, int] | None:
        if load.source in self.new:
            return tirx.BufferLoad(self.new[load.source], load.indices), 0
        if str(load.ty.dtype) == _HALF:
            return load, 0
        # What a function is given in float32 is a small constant, such as a bias: factors may be too small for halves.
        is_given = not any(load.source.same_as(buffer) for buffer in self._between)
        return (tirx.Cast(_HALF, load), 0) if is_given and not factor and str(load.ty.dtype) == _FLOAT else None


def _unlimited(value: Any) -> Any:
    """What `storage_type` keeps within the range of halves: sums of halves that leave it are infinite."""
    if not (isinstance(value, tirx.Select) and isinstance(value.condition, tirx.LE)):
        return value
    size = value.condition.a
    limited = isinstance(value.true_value, tirx.Max) and isinstance(size, tvm.ir.Call) and _is_abs(size)
    return value.false_value if limited and tvm_ffi.structural_equal(size.args[0], value.false_value) else value
