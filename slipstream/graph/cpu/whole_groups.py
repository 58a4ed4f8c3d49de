"""Grouped convolutions whose groups fill no vectors compute more filters in each group, which are cut off again.

A vector holds filters of one group, since those of another one read other channels: with 34 filters in a group
(ShuffleNet) it would have two. Groups get an axis of their own, and their weights filters of zeros. So that the results
are cut off in the same function, the axis stays through the element-wise operators that follow. It is a view of the
channels: nothing is copied for it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.cpu.whole_tiles import is_plain, whole_vectors
from slipstream.graph.extents import are_known
from slipstream.graph.fuse import KNOWN_PATTERN, PRODUCT
from slipstream.graph.relax_walk import cleaned, rewritten
from slipstream.machine.target import Target

RANK_WITH_GROUPS = 5
_CONVOLUTION, _RESHAPE = tvm.ir.Op.get("relax.nn.conv2d"), tvm.ir.Op.get("relax.reshape")
_ELEMENT_WISE = {
    f"relax.{name}"
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "sigmoid", "tanh", "exp")
} | {f"relax.nn.{name}" for name in ("relu", "silu", "gelu", "leakyrelu")}


def fill_groups(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Give the groups of convolutions in NHWC whole vectors of filters where that saves instructions; not for a GPU."""
    if target.gpu is not None:
        return mod
    return cleaned(rewritten(mod, _Filler(mod, target.vector_elements)))


@mutator
class _Filler(PyExprMutator):  # type: ignore[misc]
    """Replaces such convolutions, and what is computed of their results element by element."""

    def __init__(self, mod: tvm.IRModule, lanes: int) -> None:
        super().__init__(mod)
        self._lanes = lanes
        self._grouped: set[Any] = set()  # variables of results with an axis for groups

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if call.op == _CONVOLUTION:
            return self._filled(call)
        if name in _ELEMENT_WISE:
            found = [results for results in map(self._results, call.args) if results is not None]
            return self._of_groups(call, found[0]) if found else call
        return call

    def _filled(self, call: Any) -> Any:
        groups = int(call.attrs.groups)
        if groups == 1 or not is_plain(call) or any(str(t.ty.dtype) != "float32" for t in (*call.args, call)):
            return call
        channels, filters = (int(tensor.ty.shape[3]) // groups for tensor in (call.args[0], call))
        more = whole_vectors(filters, self._lanes) - filters
        if channels == 1 or more == 0:
            return call
        window = list(map(int, call.args[1].ty.shape))[1:3]
        weight = relax.op.reshape(call.args[1], [groups, filters, *window, channels])
        whole = self.builder_.emit_te(
            _convolution,
            self._apart(call.args[0], groups, channels),
            self.builder_.emit(relax.op.nn.pad(weight, [0, 0, 0, more] + [0] * 6)),
            *(tuple(map(int, each)) for each in (call.attrs.strides, call.attrs.padding, call.attrs.dilation)),
            primfunc_name_hint="conv2d",
            primfunc_attrs={KNOWN_PATTERN: PRODUCT},
        )
        return self._view(self.builder_.emit_te(_crop, whole, filters, primfunc_name_hint="crop"), call)

    def _results(self, argument: Any) -> Any:
        """The results with an axis for groups of which an argument is the view without; None if it is none."""
        while isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
        is_view = isinstance(argument, relax.Call) and argument.op == _RESHAPE and argument.args[0] in self._grouped
        return argument.args[0] if is_view else None

    def _of_groups(self, call: Any, results: Any) -> Any:
        """The call on results with an axis for groups, if the other arguments can be taken apart as well."""
        *_, groups, each = map(int, results.ty.shape)
        arguments = [self._apart(argument, groups, each) for argument in call.args]
        if any(argument is None for argument in arguments):
            return call
        return self._view(self.builder_.emit(relax.Call(call.op, arguments, call.attrs)), call)

    def _apart(self, argument: Any, groups: int, each: int) -> Any:
        """An argument with an axis for groups; None if it cannot have one."""
        if not isinstance(argument.ty, relax.TensorType):
            return argument
        if argument.ty.shape is None or not are_known(argument.ty.shape):
            return None
        shape = list(map(int, argument.ty.shape))
        if all(extent == 1 for extent in shape):
            return argument
        if shape[-1] != groups * each:
            return None
        shape[-1:] = [groups, each]
        results = self._results(argument)
        if results is not None and list(map(int, results.ty.shape)) == shape:
            return results
        return self.builder_.emit(relax.op.reshape(argument, shape))

    def _view(self, grouped: Any, call: Any) -> Any:
        """Results as the model has them."""
        self._grouped.add(grouped)
        return relax.op.reshape(grouped, call.ty.shape)


def _convolution(
    data: te.Tensor,
    weight: te.Tensor,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> te.Tensor:
    """Results by image, row, column, group and filter."""
    batch, height, width, groups, _ = data.shape
    _, filters, *window, channels = weight.shape
    top, left, bottom, right = padding
    if any(padding):
        data = topi.nn.pad(data, (0, top, left, 0, 0), (0, bottom, right, 0, 0), name="pad")
    sizes = (int(height) + top + bottom, int(width) + left + right)
    rows, columns = (
        (size - (int(extent) - 1) * step - 1) // stride + 1
        for size, extent, step, stride in zip(sizes, window, dilation, strides, strict=True)
    )
    ry, rx, rc = (
        te.reduce_axis((0, extent), name) for extent, name in zip((*window, channels), ("ry", "rx", "rc"), strict=True)
    )
    return te.compute(
        (batch, rows, columns, groups, filters),
        lambda n, y, x, g, f: te.sum(
            data[n, y * strides[0] + ry * dilation[0], x * strides[1] + rx * dilation[1], g, rc]
            * weight[g, f, ry, rx, rc],
            axis=[ry, rx, rc],
        ),
        name="conv2d",
    )


def _crop(whole: Any, filters: int) -> Any:
    """The first filters of each group: element by element, so that TVM fuses it with the convolution."""
    return te.compute((*whole.shape[:4], filters), lambda n, y, x, g, f: whole[n, y, x, g, f], name="crop")
