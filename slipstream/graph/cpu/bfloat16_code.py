"""A pass that spells bfloat16 out: stored as 16-bit integers, read as the upper half of a float32, rounded if written.

TVM's passes for it compute in float32 too, but also make float32 of every buffer inside a function, whose elements
instructions for bfloat16 could then not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from slipstream.tvm_bridge.nodes import nodes

SHORT = "bfloat16"
_BITS = "uint16"
_BY_NAME = {
    name: tvm.ir.Op.get(full)
    for name, full in {
        "if_then_else": "prim.if_then_else",
        "reinterpret": "tirx.reinterpret",
        "address_of": "tirx.address_of",
        "access_ptr": "tirx.tvm_access_ptr",
        "type_annotation": "tirx.type_annotation",
    }.items()
}
_MOVES = [_BY_NAME[name] for name in ("if_then_else", "reinterpret", "type_annotation")]


def only_stores_bfloat16(func: tirx.PrimFunc) -> bool:
    """Whether a function has bfloat16 and does nothing with it but move and convert it."""
    short = [expression for expression in nodes(func.body, tvm.ir.Expr) if _is_short(expression)]
    return bool(short) and all(
        isinstance(expression, TensorLoad | tirx.Cast | tirx.Select | tirx.FloatImm | tirx.Broadcast)
        or (isinstance(expression, tvm.ir.Call) and expression.op in _MOVES)
        for expression in short
    )


def spell_out_bfloat16(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Lowered code without bfloat16, of a function that only stores it."""
    spell = _Spell()
    callbacks = (
        (tvm.ir.Var, spell.buffer),
        (tirx.AllocBuffer, spell.allocated),
        (tirx.DeclBuffer, spell.declared),
        (TensorLoad, spell.load),
        (tirx.BufferStore, spell.store),
        (tirx.Cast, spell.cast),
        (tvm.ir.Call, spell.call),
    )
    return func.with_body(tvm_ffi.structural_map(func.body, callbacks))


class _Spell:
    """What becomes of each kind of node, the inner ones first. A loaded element is bits that are called bfloat16 until
    the node around it uses them."""

    def __init__(self) -> None:
        self._new: dict[Any, Any] = {}

    def buffer(self, variable: Any) -> Any:
        if not isinstance(variable.ty, tirx.buffer.BufferType) or not str(variable.ty.dtype).startswith(SHORT):
            return variable
        if variable not in self._new:
            dtype = str(variable.ty.dtype).replace(SHORT, _BITS)  # it may have vectors as elements
            self._new[variable] = tirx.decl_buffer(list(variable.shape), dtype, variable.name, scope=variable.scope())
        return self._new[variable]

    def _is_new(self, buffer: Any) -> bool:
        return any(buffer.same_as(new) for new in self._new.values())

    def allocated(self, statement: Any) -> Any:
        buffer = self.buffer(statement.buffer)
        return tirx.AllocBuffer(buffer, statement.annotations) if self._is_new(buffer) else statement

    def declared(self, statement: Any) -> Any:
        buffer = self.buffer(statement.buffer)
        return tirx.DeclBuffer(buffer, data=statement.data) if self._is_new(buffer) else statement

    def load(self, load: Any) -> Any:
        buffer = self.buffer(load.source)
        return _named(tirx.BufferLoad(buffer, load.indices)) if self._is_new(buffer) else load

    def store(self, store: Any) -> Any:
        buffer = self.buffer(store.buffer)
        return tirx.BufferStore(buffer, _bits(store.value), store.indices) if self._is_new(buffer) else store

    def cast(self, cast: Any) -> Any:
        if _is_short(cast.value):
            wide = _as(cast, "uint32")
            shifted = tirx.Cast(wide, _bits(cast.value)) << _like(cast, tirx.const(16, "uint32"))
            value = tirx.reinterpret(_as(cast, "float32"), shifted)
            return value if str(cast.ty.dtype).startswith("float32") else tirx.Cast(str(cast.ty.dtype), value)
        return _named(_rounded(cast.value)) if _is_short(cast) else cast

    def call(self, call: Any) -> Any:
        if call.op == _BY_NAME["address_of"] and _is_short(call.args[0]):
            return tirx.address_of(_bits(call.args[0]))
        if call.op == _BY_NAME["reinterpret"] and len(call.args) == 1 and _is_short(call.args[0]):
            return tirx.reinterpret(str(call.ty.dtype), _bits(call.args[0]))
        if call.op == _BY_NAME["reinterpret"] and _points_to_short(call.ty):
            return tirx.reinterpret(tvm.ir.PointerType(tvm.ir.PrimType(_BITS), call.ty.storage_scope), call.args[0])
        if call.op == _BY_NAME["access_ptr"] and str(call.args[0].ty.dtype) == SHORT:
            return tirx.tvm_access_ptr(_BITS, *call.args[1:])
        return call


def _is_short(expression: Any) -> bool:
    """Whether a number or a vector is bfloat16; a buffer of it is neither."""
    return isinstance(expression.ty, tvm.ir.PrimType) and str(expression.ty.dtype).startswith(SHORT)


def _points_to_short(type_: Any) -> bool:
    if not isinstance(type_, tvm.ir.PointerType) or not isinstance(type_.element_type, tvm.ir.PrimType):
        return False
    return str(type_.element_type.dtype) == SHORT


def _as(like: Any, scalar: str) -> str:
    lanes = int(like.ty.dtype.lanes)
    return f"{scalar}x{lanes}" if lanes > 1 else scalar


def _like(like: Any, number: Any) -> Any:
    lanes = int(like.ty.dtype.lanes)
    return tirx.Broadcast(number, lanes) if lanes > 1 else number


def _named(bits: Any) -> Any:
    return tirx.reinterpret(_as(bits, SHORT), bits)


def _bits(value: Any) -> Any:
    """The bits of an expression in bfloat16."""
    if isinstance(value, tirx.FloatImm):
        upper = int(np.array(float(value.value), np.float32).view(np.uint32)) >> 16
        return tirx.IntImm(_BITS, upper)
    if isinstance(value, tirx.Broadcast):
        return tirx.Broadcast(_bits(value.value), value.lanes)
    if isinstance(value, tirx.Select):
        return tirx.Select(value.condition, _bits(value.true_value), _bits(value.false_value))
    if isinstance(value, tvm.ir.Call) and value.op == _BY_NAME["if_then_else"]:
        condition, yes, no = value.args
        return tirx.if_then_else(condition, _bits(yes), _bits(no))
    if isinstance(value, tvm.ir.Call) and value.op == _BY_NAME["reinterpret"]:
        (inner,) = value.args
        return inner if str(inner.ty.dtype).startswith(_BITS) else tirx.reinterpret(_as(value, _BITS), inner)
    raise ValueError(f"no code for {type(value).__name__} in bfloat16")


def _rounded(value: Any) -> Any:
    """The nearest bfloat16 of a float32, the even one of two; NaN may become another NaN."""
    if not str(value.ty.dtype).startswith("float32"):
        value = tirx.Cast(_as(value, "float32"), value)
    bits = tirx.reinterpret(_as(value, "uint32"), value)
    sixteen, one, below = (_like(value, tirx.const(number, "uint32")) for number in (16, 1, 0x7FFF))
    return tirx.Cast(_as(value, _BITS), (bits + (((bits >> sixteen) & one) + below)) >> sixteen)
