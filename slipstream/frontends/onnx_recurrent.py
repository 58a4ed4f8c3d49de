"""ONNX's LSTM, GRU and RNN, and `com.microsoft.DynamicQuantizeLSTM`."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from slipstream.frontends.recurrent_layer import emit_layer, permuted, reshaped, shape_of
from slipstream.frontends.recurrent_steps import ACTIVATIONS, DEFAULT_ACTIVATIONS, GATES, Layer

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _recurrent(kind: str) -> type:
    class Recurrent(onnx_frontend.OnnxOpConverter):  # type: ignore[misc]
        @classmethod
        def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
            x, w, r, bias, lengths, state, cell, peepholes = _padded(inputs, 8)
            w, r = permuted(bb, w, [0, 2, 1]), permuted(bb, r, [0, 2, 1])
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
        x, state, cell = (None if value is None else permuted(bb, value, [1, 0, 2]) for value in (x, state, cell))
    steps, batch, _ = shape_of(x)
    directions, hidden, _ = shape_of(r)
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
    results = emit_layer(bb, layer, x, w, r, bias, lengths=lengths, state=state, cell=cell, peepholes=peepholes)
    if batch_first:
        results = [
            permuted(bb, results[0], [2, 0, 1, 3]),
            *(permuted(bb, result, [1, 0, 2]) for result in results[1:]),
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


def _dequantised(bb: Any, weights: Any, scale: Any, zero: Any) -> Any:
    """int8 weights [directions, inputs, columns] as float32; scales are by direction, or by column too."""

    def spread(value: Any) -> Any:
        directions, *columns = shape_of(value)
        return reshaped(bb, value, [directions, 1, *(columns or [1])])

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


CONVERTERS = {
    **{kind.upper(): _recurrent(kind) for kind in GATES},
    "DynamicQuantizeLSTM": DynamicQuantizeLSTM,
}
