"""Transposes moved behind the operators that read them, until two cancel.

Layout conversion carries some operators along and leaves others, such as an upsampling by indices, between a transpose
there and one back. Without these, a kernel would read an image's channels far from each other.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.relax_walk import cleaned, with_main

_TRANSPOSE, _CONCAT = tvm.ir.Op.get("relax.permute_dims"), tvm.ir.Op.get("relax.concat")
_TAKE = tvm.ir.Op.get("relax.take")


def move_transposes(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with transposes behind concatenations and gathers along an axis."""
    return cleaned(with_main(mod, _Move().visit_expr(mod["main"])))


@mutator
class _Move(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op == _TRANSPOSE:
            return self._cancel(call)
        if call.op == _TAKE and call.attrs.axis is not None and call.args[1].ty.ndim == 1:
            return self._behind_take(call)
        if call.op == _CONCAT and isinstance(call.args[0], relax.Tuple):
            return self._behind_concat(call)
        return call

    def _cancel(self, call: Any) -> Any:
        outer, (source, inner) = _order(call), self._transposed(call.args[0])
        if outer is None or inner is None:
            return call
        order = [inner[axis] for axis in outer]
        return source if order == sorted(order) else op.permute_dims(source, order)

    def _behind_take(self, call: Any) -> Any:
        source, order = self._transposed(call.args[0])
        if order is None:
            return call
        taken = self.builder_.emit(op.take(source, call.args[1], order[int(call.attrs.axis) % len(order)]))
        return op.permute_dims(taken, order)

    def _behind_concat(self, call: Any) -> Any:
        parts = [self._transposed(part) for part in call.args[0].fields]
        order = parts[0][1]
        if order is None or any(other != order for _, other in parts):
            return call
        joined = op.concat([source for source, _ in parts], order[int(call.attrs.axis) % len(order)])
        return op.permute_dims(self.builder_.emit(joined), order)

    def _transposed(self, value: Any) -> tuple[Any, list[int] | None]:
        """What is transposed, and how; no order if `value` is no transpose."""
        bound = self.lookup_binding(value) if isinstance(value, relax.Var) else None
        if not isinstance(bound, relax.Call) or bound.op != _TRANSPOSE:
            return value, None
        return bound.args[0], _order(bound)


def _order(call: Any) -> list[int] | None:
    rank = len(call.args[0].ty.shape)
    axes = call.attrs.axes
    return list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]
