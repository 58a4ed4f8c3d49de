"""QuantizeLinear and DequantizeLinear of activations as element-wise operators, which layout conversion carries along.

Levels get the type that the target multiplies, int8 or uint8: an unsigned tensor less 128 is a signed one with its zero
point less 128. Every use of a dequantised tensor gets a dequantisation of its own, so that only bytes are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.relax_walk import calls_in, cleaned, is_constant, rewritten
from slipstream.machine.dot_product import dot_product_of
from slipstream.machine.target import Target

_QUANTIZE, _DEQUANTIZE = tvm.ir.Op.get("relax.quantize"), tvm.ir.Op.get("relax.dequantize")
BYTES = ("int8", "uint8")


def is_quantised(mod: tvm.IRModule) -> bool:
    """Whether `main` dequantises anything."""
    return any(call.op == _DEQUANTIZE for call in calls_in(mod["main"]))


def spell_out_quantisation(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The same in arithmetic on float32 and casts; for CPUs, and where one scale is for a whole tensor."""
    if target.gpu is not None or not is_quantised(mod):
        return mod
    return cleaned(rewritten(mod, _Spelling(mod, dot_product_of(target).data_type)))


@dataclass(frozen=True)
class Levels:
    """A tensor of bytes: value = (data - zero) * scale."""

    data: Any
    scale: float
    zero: int


@mutator
class _Spelling(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, data_type: str) -> None:
        super().__init__(mod)
        self._type = data_type
        self._stored: dict[Any, Any] = {}  # a tensor as the model has it: the same in our type
        self._dequantised: dict[Any, Levels] = {}

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op == _QUANTIZE:
            return self._quantize(call)
        if call.op == _DEQUANTIZE:
            return self._dequantize(call)
        fresh = [self._fresh(argument) for argument in call.args]
        if all(new is old for new, old in zip(fresh, call.args, strict=True)):
            return call
        return relax.Call(call.op, fresh, call.attrs, call.ty_args)

    def _fresh(self, argument: Any) -> Any:
        """A dequantisation for one use."""
        if isinstance(argument, relax.Tuple):
            fields = [self._fresh(field) for field in argument.fields]
            return relax.Tuple(fields)
        levels = self._dequantised.get(self._origin(argument)) if isinstance(argument, relax.Var) else None
        return argument if levels is None else self._emit_dequantised(levels)

    def _emit_dequantised(self, levels: Levels) -> Any:
        emit = self.builder_.emit
        centred = emit(op.subtract(emit(op.astype(levels.data, "float32")), _number(levels.zero)))
        return emit(op.multiply(centred, _number(levels.scale)))

    def _origin(self, variable: Any) -> Any:
        while isinstance(found := self.lookup_binding(variable), relax.Var):
            variable = found
        return variable

    def _quantize(self, call: Any) -> Any:
        data = self._fresh(call.args[0])
        scale, zero = _scalar(call.args[1]), _scalar(call.args[2])
        own = str(call.attrs.out_dtype)
        if scale is None or zero is None or own not in BYTES or str(data.ty.dtype) != "float32":
            return relax.Call(call.op, [data, *call.args[1:]], call.attrs, call.ty_args)
        emit = self.builder_.emit
        least, largest = np.iinfo(self._type).min, np.iinfo(self._type).max
        shifted = zero + _shift(own, self._type)
        steps = emit(op.multiply(data, _number(float(np.float32(1) / np.float32(scale)))))
        above = emit(op.maximum(steps, _number(least - shifted)))
        level = emit(op.round(emit(op.minimum(above, _number(largest - shifted)))))
        stored = emit(op.astype(emit(op.add(level, _number(shifted))), self._type))
        if own == self._type:
            return stored
        original = emit(_converted(stored, own))
        self._stored[original] = stored
        return original

    def _dequantize(self, call: Any) -> Any:
        data = call.args[0]
        scale, zero = _scalar(call.args[1]), _scalar(call.args[2])
        own = str(data.ty.dtype)
        if scale is None or own not in BYTES or not isinstance(data, relax.Var):
            return call
        if str(call.attrs.out_dtype) != "float32" or (zero is None and not is_one_number(call.args[2])):
            return call
        origin = self._origin(data)
        if own != self._type and origin not in self._stored:
            self._stored[origin] = self.builder_.emit(_converted(data, self._type))
        stored, shift = self._stored.get(origin, origin), _shift(own, self._type)
        if zero is None:
            emit = self.builder_.emit
            shifted = emit(op.add(emit(op.astype(call.args[2], "float32")), _number(shift)))
            centred = emit(op.subtract(emit(op.astype(stored, "float32")), shifted))
            return op.multiply(centred, _number(scale))
        levels = Levels(stored, scale, int(zero + shift))
        result = self._emit_dequantised(levels)
        self._dequantised[result] = levels
        return result


def _shift(old: str, new: str) -> int:
    return int(np.iinfo(new).min) - int(np.iinfo(old).min)


def _converted(data: Any, new: str) -> Any:
    """Bytes in the other type, with the same order."""
    shift = _shift(str(data.ty.dtype), new)
    return op.astype(op.add(op.astype(data, "int32"), relax.const(shift, "int32")), new)


def _number(value: float) -> Any:
    return relax.const(np.float32(value))


def is_one_number(value: Any) -> bool:
    """Whether a tensor that is computed has one element."""
    shape = value.ty.shape
    return isinstance(value, relax.Var) and shape is not None and all(str(extent) == "1" for extent in shape)


def _scalar(value: Any) -> Any | None:
    """The one number of a constant; None for anything else."""
    if not is_constant(value):
        return None
    array = value.value.numpy()
    return array.reshape(-1)[0].item() if array.size == 1 else None
