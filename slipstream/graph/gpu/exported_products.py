"""Products as PyTorch's exporter decomposes them, in the shapes they have in the model.

`torch.export` writes a product of stacks of matrices as one of flat stacks between reshapes, a linear layer's weight as
a stack of copies, and the softmax of an attention with a guard against rows without any score. Without these, an
attention is two matmuls and a softmax, as the kernels' rules expect it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.relax_walk import cleaned, is_constant, rewritten

_OPS = ("matmul", "reshape", "broadcast_to", "where", "nn.softmax", "equal")
_MATMUL, _RESHAPE, _BROADCAST, _WHERE, _SOFTMAX, _EQUAL = (tvm.ir.Op.get(f"relax.{name}") for name in _OPS)
# From the condition of the guard back to the comparison of scores with minus infinity.
_GUARD = tuple(tvm.ir.Op.get(f"relax.{name}") for name in ("logical_not", "astype", "max", "astype", "logical_not"))
_MATRIX = 2
_LEAST_TOTAL = 1e-30  # with any score, the exponential of the largest is 1


def restore_products(mod: tvm.IRModule) -> tvm.IRModule:
    """The module without what the exporter puts around products."""
    return cleaned(rewritten(mod, _Restore(mod)))


@mutator
class _Restore(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op == _BROADCAST and _shape(call.args[0]) == _extents(call.args[1]):
            return call.args[0]
        if call.op == _MATMUL:
            return self._with_one_weight(call)
        if call.op == _RESHAPE:
            return self._product_in_shape(call)
        if call.op == _WHERE:
            return self._without_guard(call)
        return call

    def _bound(self, value: Any, operator: Any) -> Any:
        """The call of an operator that `value` is bound to; None if it is bound to anything else."""
        found = self.lookup_binding(value) if isinstance(value, relax.Var) else None
        return found if isinstance(found, relax.Call) and found.op == operator else None

    def _with_one_weight(self, call: Any) -> Any:
        copies = self._bound(call.args[1], _BROADCAST)
        if copies is None or copies.args[0].ty.ndim != _MATRIX:
            return call
        return op.matmul(call.args[0], copies.args[0], call.attrs.out_dtype)

    def _product_in_shape(self, call: Any) -> Any:
        """reshape(matmul(reshape(a), reshape(b))) as matmul(a, b), where that has the shape."""
        product = self._bound(call.args[0], _MATMUL)
        flat = [self._bound(factor, _RESHAPE) for factor in product.args] if product is not None else []
        sources = [factor.args[0] for factor in flat if factor is not None]
        if len(sources) != _MATRIX:
            return call
        a, b = sources
        stacks = [_shape(factor)[:-_MATRIX] for factor in (a, b)]
        matrices = [_shape(factor)[-_MATRIX:] for factor in (a, b)]
        kept = [_shape(factor)[-_MATRIX:] for factor in product.args]
        wanted = (*stacks[0], matrices[0][0], matrices[1][1])
        if stacks[0] != stacks[1] or matrices != kept or _extents(call.args[1]) != wanted:
            return call
        return op.matmul(a, b, product.attrs.out_dtype)

    def _without_guard(self, call: Any) -> Any:
        """One function for where(every score is minus infinity, 0, softmax(scores))."""
        condition, _, values = call.args
        softmax = self._bound(values, _SOFTMAX)
        if softmax is None or int(softmax.attrs.axis) not in (-1, softmax.ty.ndim - 1):
            return call
        for operator in _GUARD:
            step = self._bound(condition, operator)
            if step is None:
                return call
            condition = step.args[0]
        compared = self._bound(condition, _EQUAL)
        if compared is None or not compared.args[0].same_as(softmax.args[0]) or not is_constant(compared.args[1]):
            return call
        if not np.isneginf(compared.args[1].value.numpy()).all():
            return call
        return self.builder_.call_te(_softmax_or_zero, softmax.args[0])


def _softmax_or_zero(scores: Any) -> Any:
    """Softmax along the last axis; zero where no score is more than minus infinity."""
    *rows, columns = scores.shape

    def over_columns(reduce: Any, values: Any, name: str) -> Any:
        k = te.reduce_axis((0, columns), "k")
        return te.compute(rows, lambda *at: reduce(values[(*at, k)], axis=k), name)

    top = over_columns(te.max, scores, "top")  # of no scores the least number, not minus infinity
    powers = te.compute(scores.shape, lambda *at: tirx.exp(scores[at] - top[at[:-1]]), "power")
    total = over_columns(te.sum, powers, "total")
    least = tirx.const(_LEAST_TOTAL, scores.dtype)
    return te.compute(scores.shape, lambda *at: powers[at] / tirx.max(total[at[:-1]], least), "softmax")


def _shape(value: Any) -> tuple[Any, ...]:
    return _extents(value.ty.shape)


def _extents(shape: Any) -> tuple[Any, ...]:
    return tuple(int(e) if isinstance(e, tirx.IntImm) else e for e in shape)
