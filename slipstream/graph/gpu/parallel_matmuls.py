"""Matmuls of one tensor as one, such as the three projections of an attention; their results are slices of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.relax_walk import bindings_of_main, cleaned, is_constant, with_main

_MATMUL, _ADD = tvm.ir.Op.get("relax.matmul"), tvm.ir.Op.get("relax.add")
_TRANSPOSE = tvm.ir.Op.get("relax.permute_dims")


def join_matmuls(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with parallel matmuls joined."""
    return cleaned(with_main(mod, _Join(_parallel_matmuls(mod)).visit_expr(mod["main"])))


@dataclass(frozen=True)
class _Joint:
    """A place in the joint result: that of `first`, which computes all of them, from column `begin` on."""

    first: Any
    begin: int
    weight: Any
    bias: Any | None


def _parallel_matmuls(mod: tvm.IRModule) -> dict[Any, _Joint]:
    """By the variable of the matmul, or of its bias where each has one: which joint matmul it is part of."""
    bindings = {binding.var: binding.value for binding in bindings_of_main(mod)}
    users: dict[Any, list[Any]] = {}
    for var, value in bindings.items():
        for used in relax.analysis.free_vars(value):
            users.setdefault(used, []).append(var)
    by_input: dict[tuple[Any, ...], list[tuple[Any, Any, Any]]] = {}
    for var, value in bindings.items():
        if not isinstance(value, relax.Call) or value.op != _MATMUL or not isinstance(value.args[0], relax.Var):
            continue
        weight = _constant(value.args[1], bindings)
        if weight is None or weight.ndim != 2:
            continue
        result, bias = var, None
        following = bindings.get(users[var][0]) if len(users.get(var, [])) == 1 else None
        if isinstance(following, relax.Call) and following.op == _ADD:
            bias = next((_constant(a, bindings) for a in following.args if not a.same_as(var)), None)
            if bias is not None and bias.shape == weight.shape[1:]:
                result = users[var][0]
            else:
                bias = None
        key = (value.args[0], bias is None, str(value.ty.dtype))
        by_input.setdefault(key, []).append((result, weight, bias))
    joint: dict[Any, _Joint] = {}
    for branches in by_input.values():
        if len(branches) < 2:
            continue
        weights = np.concatenate([weight for _, weight, _ in branches], axis=1)
        biases = None if branches[0][2] is None else np.concatenate([bias for _, _, bias in branches])
        begin = 0
        for result, weight, _ in branches:
            joint[result] = _Joint(branches[0][0], begin, weights, biases)
            begin += weight.shape[1]
    return joint


def _constant(value: Any, bindings: dict[Any, Any]) -> Any:
    """The array that an operand stands for, through transposes; None if it is not known."""
    value = bindings.get(value, value)
    if is_constant(value):
        return value.value.numpy()
    if isinstance(value, relax.Call) and value.op == _TRANSPOSE:
        array = _constant(value.args[0], bindings)
        axes = value.attrs.axes
        return None if array is None else array.transpose(None if axes is None else [int(a) for a in axes])
    return None


@mutator
class _Join(PyExprMutator):  # type: ignore[misc]
    def __init__(self, joint: dict[Any, _Joint]) -> None:
        super().__init__()
        self._joint = joint
        self._wholes: dict[Any, Any] = {}

    def visit_var_binding_(self, binding: Any) -> None:
        part = self._joint.get(binding.var)
        if part is None:
            super().visit_var_binding_(binding)
            return
        if part.first not in self._wholes:
            matmul = self.lookup_binding(binding.value.args[0]) if part.bias is not None else binding.value
            if part.bias is not None and not (isinstance(matmul, relax.Call) and matmul.op == _MATMUL):
                matmul = self.lookup_binding(binding.value.args[1])
            whole = self.builder_.emit(op.matmul(self.visit_expr(matmul.args[0]), relax.const(part.weight)))
            if part.bias is not None:
                whole = self.builder_.emit(op.add(whole, relax.const(part.bias)))
            self._wholes[part.first] = whole
        whole = self._wholes[part.first]
        axis, width = len(whole.ty.shape) - 1, int(binding.var.ty.shape[-1])
        sliced = self.builder_.normalize(op.strided_slice(whole, [axis], [part.begin], [part.begin + width]))
        new = self.builder_.emit(sliced)
        self.set_var_remap(binding.var, new)
