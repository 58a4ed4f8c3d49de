"""TIR expressions as Triton code.

Every float is computed in float32, whatever type TIR gives it: Triton converts what it loads, and the kernel converts
what it stores. So an epilogue is at least as exact as the operator's own expression. Indices are 32-bit integers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.analysis import undefined_vars

_BINARY = {tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.FloorDiv: "//", tirx.FloorMod: "%"}
_COMPARISONS = {tirx.LT: "<", tirx.LE: "<=", tirx.GT: ">", tirx.GE: ">=", tirx.EQ: "==", tirx.NE: "!="}
_CALLS = {
    "exp": "tl.exp({})",
    "log": "tl.log({})",
    "sqrt": "tl.sqrt({})",
    "rsqrt": "tl.rsqrt({})",
    "erf": "tl.erf({})",
    "fabs": "tl.abs({})",
    "floor": "tl.floor({})",
    "ceil": "tl.ceil({})",
    "sigmoid": "tl.sigmoid({})",
    "cos": "tl.cos({})",
    "sin": "tl.sin({})",
    "tanh": "(2.0 * tl.sigmoid(2.0 * ({})) - 1.0)",
}
FLOATS = ("float16", "bfloat16", "float32")
TYPES = {
    **{name: f"tl.{name}" for name in ("float16", "bfloat16", "float32", "int8", "int16", "int32", "int64", "uint8")},
    "bool": "tl.int1",
}


class Names(dict[Any, str]):
    """Triton's names of TIR's variables; those of loops that run once are zero."""

    def __missing__(self, variable: Any) -> str:
        return "0"


def power_of_two(extent: int) -> int:
    """The least power of two that is not smaller: the extents of Triton's tiles."""
    return 1 << max(0, extent - 1).bit_length()


class InexpressibleError(ValueError):
    """TIR that the templates have no Triton code for."""


@dataclass
class Writer:
    """Writes expressions in terms of `variables` (TIR variable to Triton name) and `pointers` (buffer to parameter).

    `replaced` are tensors whose loads stand for a value that is there already. The same for a whole block are the
    `scalars` among the variables.
    """

    pointers: Mapping[Any, str]
    variables: Mapping[Any, str]
    replaced: Mapping[Any, str] = field(default_factory=dict)
    scalars: Collection[str] = ()

    def value(self, expression: Any, guard: str = "") -> str:
        """The expression where `guard` holds; anything elsewhere, but nothing outside of tensors is read."""
        kind = type(expression)
        if isinstance(expression, tvm.ir.expr.TensorLoad):
            return self._load(expression, guard, wide=True)
        if isinstance(expression, tirx.IntImm):
            return str(int(expression.value))
        if isinstance(expression, tirx.FloatImm):
            return f"({float(expression.value)!r})" if abs(expression.value) < 1e38 else _extreme(expression.value)
        if isinstance(expression, tvm.ir.Var):
            return self.variables[expression]
        if kind in _BINARY:
            return f"({self.value(expression.a, guard)} {_BINARY[kind]} {self.value(expression.b, guard)})"
        if kind in _COMPARISONS:
            return f"({self.value(expression.a, guard)} {_COMPARISONS[kind]} {self.value(expression.b, guard)})"
        if kind is tirx.Div:
            return f"({self.value(expression.a, guard)} / {self.value(expression.b, guard)})"
        if kind in (tirx.Max, tirx.Min):
            name = "maximum" if kind is tirx.Max else "minimum"
            return f"tl.{name}({self.value(expression.a, guard)}, {self.value(expression.b, guard)})"
        if kind in (tirx.And, tirx.Or):
            sign = "&" if kind is tirx.And else "|"
            return f"({self.value(expression.a, guard)} {sign} {self.value(expression.b, guard)})"
        if kind is tirx.Not:
            return f"(~{self.value(expression.a, guard)})"
        if kind is tirx.Cast:
            return self._cast(expression, guard)
        if kind is tirx.Select:
            return self._where(expression.condition, expression.true_value, expression.false_value, guard)
        if isinstance(expression, tvm.ir.Call):
            return self._call(expression, guard)
        raise InexpressibleError(f"no Triton code for {kind.__name__}")

    def factor(self, expression: Any, guard: str, dtype: str) -> str:
        """A factor of a product in `dtype`: zero where `guard` does not hold."""
        if isinstance(expression, tvm.ir.expr.TensorLoad):
            return self._load(expression, guard, wide=False)
        if _is_padding(expression):
            condition, inside, _ = expression.args
            within = f"{guard} & {self.value(condition)}" if guard else self.value(condition)
            return self._load(inside, within, wide=False)
        value = self.value(expression, guard)
        return f"tl.where({guard}, {value}, 0.0).to({TYPES[dtype]})" if guard else f"({value}).to({TYPES[dtype]})"

    def address(self, buffer: Any, indices: Any) -> str:
        """The pointer to an element."""
        pointer = next((name for known, name in self.pointers.items() if known.same_as(buffer)), None)
        if pointer is None:
            raise InexpressibleError("a tensor that is no argument")
        stride, terms = 1, []
        for index, extent in reversed(list(zip(indices, buffer.shape, strict=True))):
            if not (isinstance(index, tirx.IntImm) and int(index.value) == 0):
                text = self.value(index)
                terms.append(text if stride == 1 else f"{text} * {stride}")
            stride *= int(extent)
        if stride >= 2**31:
            raise InexpressibleError("a tensor of more than 2^31 elements")
        return " + ".join([pointer, *reversed(terms)])

    def _load(self, load: Any, guard: str, *, wide: bool) -> str:
        for tensor, name in self.replaced.items():
            if load.source.same_as(tensor):
                return name
        address = self.address(load.source, load.indices)
        used = {self.variables[variable] for index in load.indices for variable in undefined_vars(index)}
        text = (
            f"tl.load({address})"
            if used <= {"0", *self.scalars} or not guard
            else f"tl.load({address}, mask={guard}, other=0.0)"
        )
        dtype = str(load.ty.dtype)
        if dtype not in FLOATS:
            return text.replace("other=0.0", "other=0")
        return f"{text}.to(tl.float32)" if wide and dtype != "float32" else text

    def _cast(self, cast: Any, guard: str) -> str:
        to, value = str(cast.ty.dtype), self.value(cast.value, guard)
        if to in FLOATS and str(cast.value.ty.dtype) in FLOATS:
            return value
        return f"({value}).to({TYPES['float32' if to in FLOATS else to]})"

    def _where(self, condition: Any, yes: Any, no: Any, guard: str) -> str:
        test = self.value(condition, guard)
        inside = f"({guard}) & {test}" if guard else test
        outside = f"({guard}) & (~{test})" if guard else f"(~{test})"
        return f"tl.where({test}, {self.value(yes, inside)}, {self.value(no, outside)})"

    def _call(self, call: Any, guard: str) -> str:
        name = str(call.op.name).rpartition(".")[2]
        if name == "if_then_else":
            condition, yes, no = call.args
            return self._where(condition, yes, no, guard)
        if name == "likely":
            return self.value(call.args[0], guard)
        if name == "pow":
            return self._power(call, guard)
        if name not in _CALLS:
            raise InexpressibleError(f"no Triton code for {name}")
        return _CALLS[name].format(*(self.value(argument, guard) for argument in call.args))

    def _power(self, call: Any, guard: str) -> str:
        base, exponent = call.args
        if not isinstance(exponent, tirx.FloatImm) or exponent.value not in (2.0, 3.0, 0.5):
            raise InexpressibleError("no Triton code for this power")
        value = self.value(base, guard)
        return f"tl.sqrt({value})" if exponent.value == 0.5 else "(" + " * ".join([value] * int(exponent.value)) + ")"


def _is_padding(expression: Any) -> bool:
    """Whether it is an element of a tensor, or zero."""
    if not isinstance(expression, tvm.ir.Call) or not str(expression.op.name).endswith("if_then_else"):
        return False
    _, inside, outside = expression.args
    return (
        isinstance(inside, tvm.ir.expr.TensorLoad)
        and isinstance(outside, tirx.FloatImm)
        and float(outside.value) == 0.0
    )


def _extreme(value: float) -> str:
    return 'float("-inf")' if value < 0 else 'float("inf")'
