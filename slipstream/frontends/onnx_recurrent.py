"""LSTM, GRU, RNN and `com.microsoft.DynamicQuantizeLSTM`: one matmul over all steps, then `recurrent_steps`."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax.frontend.onnx import onnx_frontend

from slipstream.frontends.recurrent_steps import ACTIVATIONS, DEFAULT_ACTIVATIONS, GATES, Layer, recurrent_steps

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _recurrent(kind: str) -> type:
    class Recurrent(onnx_frontend.OnnxOpConverter):  # type: ignore[misc]
        @classmethod
        def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
            x, w, r, bias, lengths, state, cell, peepholes = _padded(inputs, 8)
            w, r = _permuted(bb, w, [0, 2, 1]), _permuted(bb, r, [0, 2, 1])
            return _emit(bb, kind, attr, x, w, r, bias, lengths, state, cell, peepholes)

    return Recurrent


class DynamicQuantizeLSTM(onnx_frontend.OnnxOpConverter):  # type: ignore[misc]
    """Inputs and state are rounded to 8 bits as the operator defines; the products are those of float32."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        x, w, r, bias, lengths, state, cell, peepholes, *quantisation = _padded(inputs, 12)
        w_scale, w_zero, r_scale, r_zero = quantisation
        w, r = _dequantised(bb, w, w_scale, w_zero), _dequantised(bb, r, r_scale, r_zero)
        return _emit(bb, "lstm", attr, _rounded(bb, x), w, r, bias, lengths, state, cell, peepholes, quantised=True)


def _padded(inputs: Any, count: int) -> list[Any]:
    return [*inputs, *[None] * (count - len(inputs))]


def _emit(
    bb: Any,
    kind: str,
    attr: Any,
    x: Any,
    w: Any,
    r: Any,
    bias: Any,
    lengths: Any,
    state: Any,
    cell: Any,
    peepholes: Any,
    quantised: bool = False,
) -> Any:
    """The node's outputs. `w` [directions, inputs, gates * hidden] and `r` [directions, hidden, gates * hidden]."""
    batch_first = bool(attr.get("layout", 0))
    if batch_first:
        x = _permuted(bb, x, [1, 0, 2])
    steps, batch, inputs = _shape(x)
    directions, hidden, width = _shape(r)
    layer = Layer(
        kind,
        steps,
        batch,
        hidden,
        _DIRECTIONS[attr.get("direction", b"forward").decode()],
        str(x.ty.dtype),
        _activations(kind, directions, attr),
        clip=float(attr.get("clip", 0.0)),
        linear_before_reset=bool(attr.get("linear_before_reset", 0)),
        coupled=bool(attr.get("input_forget", 0)),
        peepholes=peepholes is not None,
        lengths=lengths is not None,
        quantised=quantised,
    )
    if bias is None:
        bias = relax.const(np.zeros((directions, 2 * width), layer.dtype))
    of_inputs, of_state = (_cut(bb, bias, 1, n * width, (n + 1) * width) for n in range(2))
    tensors: dict[str, Any] = {}
    after_reset = kind == "gru" and layer.linear_before_reset
    if after_reset:
        tensors["state_bias"] = _cut(bb, of_state, 1, 2 * hidden, width)
        zeros = relax.const(np.zeros((directions, hidden), layer.dtype))
        of_state = bb.normalize(relax.op.concat([_cut(bb, of_state, 1, 0, 2 * hidden), zeros], 1))
    # All directions and steps in one product.
    rows = _reshaped(bb, x, [steps * batch, inputs])
    columns = _reshaped(bb, _permuted(bb, w, [1, 0, 2]), [inputs, directions * width])
    total_bias = _reshaped(bb, bb.normalize(relax.op.add(of_inputs, of_state)), [directions * width])
    product = bb.emit(relax.op.add(bb.emit(relax.op.matmul(rows, columns)), total_bias))
    tensors["projected"] = _reshaped(bb, product, [steps, batch, directions, width])
    if layer.resets_state:
        update, reset, candidate = (_cut(bb, r, 2, n * hidden, (n + 1) * hidden) for n in range(3))
        tensors["reset_weights"] = _packed(bb, layer, [reset])
        tensors["weights"] = _packed(bb, layer, [update, candidate])
    else:
        gates = [_cut(bb, r, 2, n * hidden, (n + 1) * hidden) for n in range(layer.gates)]
        tensors["weights"] = _packed(bb, layer, gates)
    for name, value in (("state", state), ("cell", cell)):
        if name == "state" or kind == "lstm":
            if value is None:
                value = relax.const(np.zeros((directions, batch, hidden), layer.dtype))
            elif batch_first:
                value = _permuted(bb, value, [1, 0, 2])
            tensors[name] = value
    if lengths is not None:
        tensors["lengths"] = lengths
    if peepholes is not None:
        tensors["peepholes"] = peepholes
    names = list(tensors)
    made = bb.emit_te(
        lambda *given: recurrent_steps(layer, dict(zip(names, given, strict=True))),
        *tensors.values(),
        primfunc_name_hint=f"{kind}_steps",
    )
    results = [bb.emit(relax.TupleGetItem(made, i)) for i in range(2 + (kind == "lstm"))]
    if batch_first:
        results = [
            _permuted(bb, results[0], [2, 0, 1, 3]),
            *(_permuted(bb, result, [1, 0, 2]) for result in results[1:]),
        ]
    return relax.Tuple(results)


def _activations(kind: str, directions: int, attr: Any) -> tuple[str, ...]:
    """The activations of one direction, in lower case."""
    default = DEFAULT_ACTIVATIONS[kind]
    given = [name.decode().lower() for name in attr.get("activations", ())] or [*default] * directions
    node = attr["tvm_custom"]["name"] or "without a name"
    first, second = tuple(given[: len(default)]), tuple(given[len(default) :])
    unknown = [name for name in given if name not in ACTIVATIONS]
    if unknown or "activation_alpha" in attr or "activation_beta" in attr:
        what = unknown[0] if unknown else f"{given[0]} with parameters"
        raise NotImplementedError(f"node {node!r}: the activation {what} of {kind.upper()} is not supported")
    if second and second != first:
        raise NotImplementedError(f"node {node!r}: different activations for the two directions are not supported")
    return first


def _packed(bb: Any, layer: Layer, gates: list[Any]) -> Any:
    """Weights of gates, each [directions, hidden, hidden], as [directions, tiles, hidden, gates * width]."""
    width = layer.width(len(gates))
    shape = [layer.directions, layer.hidden, layer.hidden // width, width]
    tiles = [_permuted(bb, _reshaped(bb, gate, shape), [0, 2, 1, 3]) for gate in gates]
    if all(isinstance(tile, ir.GenericConst) for tile in tiles):
        return relax.const(np.concatenate([tile.value.numpy() for tile in tiles], 3))
    return bb.emit(relax.op.concat(tiles, 3)) if len(tiles) > 1 else tiles[0]


def _dequantised(bb: Any, weights: Any, scale: Any, zero: Any) -> Any:
    """int8 weights [directions, inputs, columns] as float32; scales are by direction, or by column too."""

    def spread(value: Any) -> Any:
        directions, *columns = _shape(value)
        return _reshaped(bb, value, [directions, 1, *(columns or [1])])

    levels = bb.normalize(relax.op.astype(weights, "float32"))
    if zero is not None:
        levels = bb.normalize(relax.op.subtract(levels, spread(bb.normalize(relax.op.astype(zero, "float32")))))
    return bb.normalize(relax.op.multiply(levels, spread(scale)))


def _rounded(bb: Any, x: Any) -> Any:
    """`x` rounded to the 256 levels between its smallest and largest value, zero being one of them."""

    def emit(value: Any) -> Any:
        return bb.emit(value)

    zero, top = relax.const(0.0, "float32"), relax.const(255.0, "float32")
    low = emit(relax.op.minimum(emit(relax.op.min(x)), zero))
    high = emit(relax.op.maximum(emit(relax.op.max(x)), zero))
    scale = emit(relax.op.divide(emit(relax.op.subtract(high, low)), top))
    flat = emit(relax.op.equal(scale, zero))
    scale = emit(relax.op.where(flat, relax.const(1.0, "float32"), scale))
    offset = emit(relax.op.round(emit(relax.op.divide(emit(relax.op.negative(low)), scale))))
    level = emit(relax.op.add(emit(relax.op.round(emit(relax.op.divide(x, scale)))), offset))
    level = emit(relax.op.minimum(emit(relax.op.maximum(level, zero)), top))
    return emit(relax.op.multiply(emit(relax.op.subtract(level, offset)), scale))


def _shape(value: Any) -> list[int]:
    return [int(extent) for extent in value.ty.shape]


def _reshaped(bb: Any, value: Any, shape: list[int]) -> Any:
    if isinstance(value, ir.GenericConst):
        return relax.const(value.value.numpy().reshape(shape))
    return bb.normalize(relax.op.reshape(value, shape)) if _shape(value) != shape else value


def _permuted(bb: Any, value: Any, axes: list[int]) -> Any:
    """Constants are permuted at once: TVM keeps the original of a folded one alive."""
    if isinstance(value, ir.GenericConst):
        return relax.const(np.ascontiguousarray(value.value.numpy().transpose(axes)))
    return bb.normalize(relax.op.permute_dims(value, axes))


def _cut(bb: Any, value: Any, axis: int, begin: int, end: int) -> Any:
    if isinstance(value, ir.GenericConst):
        cut = [slice(None)] * axis + [slice(begin, end)]
        return relax.const(np.ascontiguousarray(value.value.numpy()[tuple(cut)]))
    return bb.normalize(relax.op.strided_slice(value, [axis], [begin], [end]))


CONVERTERS = {
    **{kind.upper(): _recurrent(kind) for kind in GATES},
    "DynamicQuantizeLSTM": DynamicQuantizeLSTM,
}
