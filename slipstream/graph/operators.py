"""Extracts the distinct operators of a prepared model, the units of tuning, with their calls, FLOPs and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from slipstream.graph.concatenations import is_in_place
from slipstream.graph.describe.blocks import extent
from slipstream.graph.describe.key import fields_of, operator_key
from slipstream.graph.describe.names import describe
from slipstream.graph.relax_walk import calls_in, is_call_tir

_ARITHMETIC = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.Mod,
    tirx.FloorDiv,
    tirx.FloorMod,
    tirx.Max,
    tirx.Min,
)
# Calls that choose or reinterpret a value instead of computing one.
_FREE_CALLS = frozenset({"if_then_else", "reinterpret", "likely"})
_UNKNOWN = -1


@dataclass(frozen=True)
class Operator:
    """One fused function of a model.

    `weight` is how often one run of the model calls it; `flops` and `bytes` are those of a single call.
    `shapes` are the (shape, dtype) of its arguments, inputs before outputs, a dimension not known before the
    run being -1. `functions` are the names it has in the module it was extracted from.
    """

    key: str
    name: str
    kinds: tuple[str, ...]
    weight: int
    flops: int
    bytes: int
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    functions: tuple[str, ...]
    func: tirx.PrimFunc = field(compare=False, repr=False)

    @property
    def weight_bytes(self) -> int:
        """Of the arguments that are weights, in a call."""
        places = self.func.attrs.get("layout_free_buffers", []) if self.func.attrs else []
        shapes = [self.shapes[int(place)] for place in places]
        return sum(max(0, prod(shape)) * tvm.DataType(dtype).itemsize for shape, dtype in shapes)


def weights_read(operators: Iterable[Operator]) -> int:
    """How many bytes of weights all calls of these operators read."""
    return sum(operator.weight * operator.weight_bytes for operator in operators)


def extract_operators(*mods: tvm.IRModule, runs: Sequence[int] = ()) -> list[Operator]:
    """The operators that `main` of prepared modules, the parts of a model, calls, each once, the most FLOPs first.

    Functions that compute the same under different names are one operator (see `operator_key`). `runs` says how often
    each module runs, if not once: its calls count so many times.
    """
    same: dict[str, list[tuple[Any, tirx.PrimFunc, int]]] = {}
    for mod, times in zip(mods, runs or [1] * len(mods), strict=True):
        for variable, calls in _count_calls(mod).items():
            same.setdefault(operator_key(mod[variable]), []).append((variable, mod[variable], times * calls))
    operators = [
        make_operator(key, [variable for variable, _, _ in found], found[0][1], sum(calls for _, _, calls in found))
        for key, found in same.items()
    ]
    return sorted(operators, key=lambda op: (-op.weight * op.flops, -op.weight * op.bytes, op.key))


def count_calls(*mods: tvm.IRModule) -> dict[str, int]:
    """How often `main` of prepared modules calls each operator, by its key."""
    counts: dict[str, int] = {}
    for mod in mods:
        for variable, calls in _count_calls(mod).items():
            key = operator_key(mod[variable])
            counts[key] = counts.get(key, 0) + calls
    return counts


def make_operator(key: str, variables: list[Any], func: tirx.PrimFunc, weight: int) -> Operator:
    """The operator that `func` computes, called `weight` times under the names of `variables`."""
    name, kinds = describe(func)
    buffers = [parameter.ty for parameter in func.params if isinstance(parameter.ty, tirx.buffer.BufferType)]
    return Operator(
        key=key,
        name=name,
        kinds=kinds,
        weight=weight,
        flops=count_flops(func),
        bytes=sum(prod(map(extent, buffer.shape)) * buffer.dtype.dtype.itemsize for buffer in buffers),
        shapes=tuple((tuple(map(_dimension, buffer.shape)), str(buffer.dtype)) for buffer in buffers),
        functions=tuple(str(variable.name_hint) for variable in variables),
        func=func,
    )


def _count_calls(mod: tvm.IRModule) -> dict[Any, int]:
    """How often `main` calls each TIR function, in the order of the first calls; a branch counts as taken. What costs
    nothing is no operator: a concatenation in place, and another view of a tensor."""
    calls = Counter(call.args[0] for call in calls_in(mod["main"]) if is_call_tir(call))
    return {called: times for called, times in calls.items() if not _costs_nothing(mod[called])}


def _costs_nothing(func: tirx.PrimFunc) -> bool:
    return is_in_place(func) or bool(relax.analysis.has_reshape_pattern(func))


# TVM's estimate_tir_flops counts a repeated expression each time and the integers in an average's divisor, but
# no calls: it takes the polynomial of exp for over three times what it costs.
def count_flops(func: tirx.PrimFunc) -> int:
    """Arithmetic operations on tensor elements in one run of an unscheduled function.

    Additions, subtractions, multiplications, divisions, minima, maxima and calls such as `sqrt` count one
    each; an expression that a statement repeats counts once, as a compiler computes it once. Arithmetic on
    indices, comparisons, selections, conversions and the zeroing of sums are free. A loop of unknown length
    counts as one iteration. Integer elements count like floating-point ones, for quantised models.
    """
    return _flops(func.body)


def _flops(stmt: Any) -> int:
    if isinstance(stmt, tirx.SeqStmt):
        return sum(_flops(part) for part in stmt.seq)
    if isinstance(stmt, tirx.For):
        return extent(stmt.extent) * _flops(stmt.body)
    if isinstance(stmt, s_tir.SBlockRealize):
        return _flops(stmt.block.body)
    if isinstance(stmt, tirx.IfThenElse):
        return max(_flops(stmt.then_case), _flops(stmt.else_case))
    if isinstance(stmt, tirx.While | tirx.AttrStmt):
        return _flops(stmt.body)
    if isinstance(stmt, tirx.BufferStore | tirx.Bind):
        return _expression_flops(stmt.value)
    return 0


def _expression_flops(value: Any) -> int:
    flops = 0
    reads_tensor: dict[Any, bool] = {}

    def visit(expression: Any) -> bool:
        nonlocal flops
        if isinstance(expression, tvm.ir.expr.TensorLoad):
            return True
        key = tvm_ffi.StructuralKey(expression)
        if key not in reads_tensor:
            operands = [visit(operand) for operand in _operands(expression)]
            reads_tensor[key] = any(operands)
            flops += reads_tensor[key] and _is_arithmetic(expression)
        return reads_tensor[key]

    visit(value)
    return flops


def _is_arithmetic(expression: Any) -> bool:
    if isinstance(expression, tvm.ir.Call):
        return str(expression.op.name).rpartition(".")[2] not in _FREE_CALLS
    return isinstance(expression, _ARITHMETIC)


def _operands(expression: Any) -> list[Any]:
    if isinstance(expression, tvm.ir.Call):
        return list(expression.args)
    node_type: Any = type(expression)
    fields = (getattr(expression, name) for name in fields_of(node_type))
    return [part for part in fields if isinstance(part, tvm.ir.Expr)]


def _dimension(value: Any) -> int:
    return int(value) if isinstance(value, tirx.IntImm) else _UNKNOWN
