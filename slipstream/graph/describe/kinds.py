"""Classifies what a block computes, in one word, by its arithmetic and its indices.

A word ends in `:c` where one operand of a binary operation is known without reading a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import isclose, prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from slipstream.graph.describe.blocks import (
    Block,
    TensorLoad,
    convolution_of,
    matmul_of,
    shape_of,
    steps_of,
    variables_in,
    windows_of,
)
from slipstream.graph.describe.key import node_kind
from slipstream.tvm_bridge.nodes import nodes

_BINARY = {
    tirx.Add: "add",
    tirx.Sub: "subtract",
    tirx.Mul: "multiply",
    tirx.Div: "divide",
    tirx.Mod: "mod",
    tirx.FloorDiv: "floor_divide",
    tirx.FloorMod: "floor_mod",
    tirx.Max: "maximum",
    tirx.Min: "minimum",
    tirx.LT: "less",
    tirx.LE: "less_equal",
    tirx.GT: "greater",
    tirx.GE: "greater_equal",
    tirx.EQ: "equal",
    tirx.NE: "not_equal",
    tirx.And: "logical_and",
    tirx.Or: "logical_or",
}
_OPPOSITE = {tirx.Max: tirx.Min, tirx.Min: tirx.Max}

# A coefficient of each of TOPI's fast_* polynomials that no other has.
_POLYNOMIALS = {1.9875691500e-4: "exp", -2.76076847742355e-16: "tanh", -2.72614225801306e-10: "erf"}


# Blocks of `graph.cpu.integer_compute`, whose arithmetic says less than their names.
_OF_INTEGERS = {
    "border": "pad",
    "quantised": "quantize",
    "requantised": "quantize",
    "dequantised": "dequantize",
    "scaled": "dequantize",
}


def kind_of(block: Block) -> str:
    """The word for what `block` computes; the block's own name where its body has none of the known patterns."""
    if (known := _OF_INTEGERS.get(_own_name(block))) is not None:
        return known
    kind = _reduction(block) if block.reductions else _element_wise(block)
    return kind or _own_name(block)


def _reduction(block: Block) -> str | None:
    if block.summand is None:
        return _tuple_reduction(block)
    if convolution := convolution_of(block):
        name = f"conv{len(convolution.windows)}d"
        if convolution.groups == 1:
            return name
        return f"depthwise_{name}" if convolution.groups == convolution.in_channels else f"grouped_{name}"
    if matmul := matmul_of(block):
        return "matmul" if matmul.batch == 1 else "batch_matmul"
    windows = windows_of(block, block.summand) if isinstance(block.summand, TensorLoad) else []
    return f"{block.reducer}_pool{len(windows)}d" if windows else block.reducer


def _tuple_reduction(block: Block) -> str | None:
    """Reductions of several results at once: index and value, or sum and sum of squares."""
    values = [bind.value for bind in nodes(block.stmt.body, tirx.Bind)]
    if values and all(isinstance(value, tirx.Add) for value in values):
        return "moments"
    if values and all(isinstance(value, tirx.Select) for value in values):
        return "argmax" if nodes(values[-1], tirx.GT) else "argmin"
    return None


def _element_wise(block: Block) -> str | None:
    if block.store is None:
        return None
    if not block.loads:
        return "constant"
    return _polynomial(block.store.value) or _expression(block, block.store.value)


def _expression(block: Block, value: Any) -> str:
    if isinstance(value, TensorLoad):
        return _movement(block, value)
    if any(nodes(index, tirx.Cast) for load in block.loads for index in load.indices):
        return "resize"
    if isinstance(value, tirx.Cast):
        return "cast" if isinstance(value.value, TensorLoad) else _expression(block, value.value)
    if choice := _choice(value):
        return _selection(*choice)
    if type(value) in _BINARY:
        return _norm(block, value) or _binary(value)
    if isinstance(value, tvm.ir.Call):
        return _call_name(value)
    node_type: Any = type(value)
    return node_kind(node_type).lower()


def _binary(value: Any) -> str:
    name = _BINARY[type(value)]
    constant, other = value.b, value.a
    if not nodes(other, TensorLoad):
        constant, other = other, constant
    if nodes(constant, TensorLoad):
        return name
    if type(value) in _OPPOSITE and isinstance(other, _OPPOSITE[type(value)]):
        return "clip"
    if name == "maximum" and _is_number(constant, 0):
        return "relu"
    if name == "multiply" and _is_number(constant, -1):
        return "negative"
    return f"{name}:c"


def _norm(block: Block, value: Any) -> str | None:
    """Whether a block divides by the root of a statistic that covers only some of its axes."""
    roots = [call for call in nodes(value, tvm.ir.Call) if _call_name(call) in ("sqrt", "rsqrt")]
    statistics = _variables_read(load for root in roots for load in nodes(root, TensorLoad))
    if not roots or statistics >= set(block.axes):
        return None
    rank = len(block.axes)
    parameters = _variables_read(load for load in block.loads if len(load.indices) < rank)
    return "instance_norm" if parameters <= statistics else "layer_norm"


def _selection(condition: Any, yes: Any, no: Any) -> str:
    if nodes(condition, TensorLoad):
        return _leaky(yes, no) or "where"
    leaves = [*_leaves(yes), *_leaves(no)]
    if all(isinstance(leaf, TensorLoad) for leaf in leaves):
        return "concat"
    if all(nodes(leaf, TensorLoad) for leaf in leaves):
        return "where"
    return "dilate" if nodes(condition, tirx.FloorMod) else "pad"


def _leaky(yes: Any, no: Any) -> str | None:
    """x where the condition holds, x * slope elsewhere."""
    if isinstance(no, tirx.Mul):
        for x, slope in ((no.a, no.b), (no.b, no.a)):
            if tvm_ffi.structural_equal(x, yes):
                return "prelu" if nodes(slope, TensorLoad) else "leaky_relu"
    return None


def _movement(block: Block, load: Any) -> str:
    """What a block does that only copies."""
    moved, size = prod(block.axes.values()), prod(shape_of(load.source))
    if any(nodes(index, TensorLoad) for index in load.indices):
        return "take"
    if any(nodes(index, tirx.Cast) for index in load.indices):
        return "resize"
    if any(nodes(index, (tirx.FloorDiv, tirx.FloorMod)) for index in load.indices):
        return "tile" if moved > size else "reshape"
    if any(_runs_backwards(index) for index in load.indices):
        return "flip"
    moving = [index for index in load.indices if variables_in(index)]
    if moved < size or not all(isinstance(index, tvm.ir.Var) for index in moving):
        return "slice"
    order = [list(block.axes).index(variable) for variable in moving if variable in block.axes]
    if order != sorted(order):
        return "transpose"
    if moved > size:
        return "broadcast"
    return "copy" if shape_of(load.source) == block.output_shape else "reshape"


def _runs_backwards(index: Any) -> bool:
    return any(step < 0 for step in steps_of(index, list(variables_in(index))))


def _choice(value: Any) -> tuple[Any, Any, Any] | None:
    """(condition, value if it holds, value if not) of a selection."""
    if isinstance(value, tirx.Select):
        return value.condition, value.true_value, value.false_value
    if isinstance(value, tvm.ir.Call) and _call_name(value) == "if_then_else":
        return tuple(value.args)
    return None


def _leaves(value: Any) -> Iterator[Any]:
    """What a nest of selections selects from."""
    if choice := _choice(value):
        yield from _leaves(choice[1])
        yield from _leaves(choice[2])
    else:
        yield value


def _polynomial(value: Any) -> str | None:
    numbers = [node.value for node in nodes(value, tirx.FloatImm)]
    for coefficient, name in _POLYNOMIALS.items():
        if any(isclose(number, coefficient, rel_tol=1e-6) for number in numbers):
            return name
    return None


def _variables_read(loads: Iterable[Any]) -> set[Any]:
    return variables_in(*(index for load in loads for index in load.indices))


def _call_name(call: Any) -> str:
    name = str(call.op.name).rpartition(".")[2]
    return "power" if name == "pow" else name


def _is_number(value: Any, number: int) -> bool:
    return isinstance(value, tirx.FloatImm | tirx.IntImm) and value.value == number


def _own_name(block: Block) -> str:
    name = re.sub(r"^T_|[_\d]+$", "", str(block.stmt.name_hint))
    return name if name not in ("", "root") else "opaque"
