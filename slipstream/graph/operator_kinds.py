"""What a block computes, in one word, told from its arithmetic and its indices.

A word ends in `:c` where one operand of a binary operation is known without reading a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isclose, prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import detect_linear_equation

from slipstream.graph.operator_blocks import (
    REDUCERS,
    Block,
    TensorLoad,
    convolution_of,
    matmul_of,
    nodes,
    shape_of,
    variables_in,
    windows_of,
    without_cast,
)

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


def kind_of(block: Block) -> str:
    """The word for what `block` computes; its own name only where nothing can be told from its inside."""
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
    reducer = REDUCERS[type(block.store.value)]
    windows = windows_of(block, block.summand) if isinstance(block.summand, TensorLoad) else []
    return f"{reducer}_pool{len(windows)}d" if windows else reducer


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


def _expression(block: Block, value: Any) -> str | None:
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
    return None


def _binary(value: Any) -> str:
    constants = [operand for operand in (value.a, value.b) if not nodes(operand, TensorLoad)]
    if not constants:
        return _BINARY[type(value)]
    constant, other = constants[0], value.b if constants[0] is value.a else value.a
    ...
