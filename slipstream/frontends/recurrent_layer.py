"""A recurrent layer as Relax: one matmul over all steps, then the program of `recurrent_steps`."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax

from slipstream.frontends.recurrent_steps import Layer, recurrent_steps


def emit_layer(
    bb: Any,
    layer: Layer,
    x: Any,
    w: Any,
    r: Any,
    bias: Any,
    *,
    lengths: Any = None,
    state: Any = None,
    cell: Any = None,
    peepholes: Any = None,
) -> list[Any]:
    """All outputs [steps, directions, batch, hidden], the last state and, for an LSTM, the last cell.

    `x` [steps, batch, inputs], `w` [directions, inputs, gates * hidden], `r` [directions, hidden, gates * hidden],
    `bias` [directions, 2 * gates * hidden], gates in the order of ONNX. What is None is zero, or absent.
    """
    steps, batch, inputs = shape_of(x)
    directions, hidden, width = shape_of(r)
    if bias is None:
        bias = relax.const(np.zeros((directions, 2 * width), layer.dtype))
    of_inputs, of_state = (cut(bb, bias, 1, n * width, (n + 1) * width) for n in range(2))
    tensors: dict[str, Any] = {}
    if layer.kind == "gru" and layer.linear_before_reset:
        tensors["state_bias"] = cut(bb, of_state, 1, 2 * hidden, width)
        zeros = relax.const(np.zeros((directions, hidden), layer.dtype))
        of_state = bb.normalize(relax.op.concat([cut(bb, of_state, 1, 0, 2 * hidden), zeros], 1))
    # All directions and steps in one product.
    rows = reshaped(bb, x, [steps * batch, inputs])
    columns = reshaped(bb, permuted(bb, w, [1, 0, 2]), [inputs, directions * width])
    total_bias = reshaped(bb, bb.normalize(relax.op.add(of_inputs, of_state)), [directions * width])
    product = bb.emit(relax.op.add(bb.emit(relax.op.matmul(rows, columns)), total_bias))
    tensors["projected"] = reshaped(bb, product, [steps, batch, directions, width])
    gates = [cut(bb, r, 2, n * hidden, (n + 1) * hidden) for n in range(layer.gates)]
    if layer.resets_state:
        update, reset, candidate = gates
        tensors["reset_weights"] = _packed(bb, layer, [reset])
        tensors["weights"] = _packed(bb, layer, [update, candidate])
    else:
        tensors["weights"] = _packed(bb, layer, gates)
    zeros = relax.const(np.zeros((directions, batch, hidden), layer.dtype))
    tensors["state"] = zeros if state is None else state
    if layer.kind == "lstm":
        tensors["cell"] = zeros if cell is None else cell
    if lengths is not None:
        tensors["lengths"] = lengths
    if peepholes is not None:
        tensors["peepholes"] = peepholes
    names = list(tensors)
    made = bb.emit_te(
        lambda *given: recurrent_steps(layer, dict(zip(names, given, strict=True))),
        *tensors.values(),
        primfunc_name_hint=f"{layer.kind}_steps",
    )
    return [bb.emit(relax.TupleGetItem(made, i)) for i in range(2 + (layer.kind == "lstm"))]


def _packed(bb: Any, layer: Layer, gates: list[Any]) -> Any:
    """Weights of gates, each [directions, hidden, hidden], as [directions, tiles, hidden, gates * width]."""
    width, begins = layer.width(len(gates)), layer.first_elements(len(gates))
    columns = (np.array(begins)[:, None] + np.arange(width)).reshape(-1)
    shape = [layer.directions, layer.hidden, len(begins), width]
    if all(isinstance(gate, ir.GenericConst) for gate in gates):
        chosen = [gate.value.numpy()[:, :, columns].reshape(shape) for gate in gates]
        return relax.const(np.concatenate([one.transpose(0, 2, 1, 3) for one in chosen], 3))
    taken = [bb.emit(relax.op.take(gate, relax.const(columns), 2, mode="clip")) for gate in gates]
    tiles = [permuted(bb, reshaped(bb, one, shape), [0, 2, 1, 3]) for one in taken]
    return bb.emit(relax.op.concat(tiles, 3)) if len(tiles) > 1 else tiles[0]


def shape_of(value: Any) -> list[int]:
    return [int(extent) for extent in value.ty.shape]


def reshaped(bb: Any, value: Any, shape: list[int]) -> Any:
    if isinstance(value, ir.GenericConst):
        return relax.const(value.value.numpy().reshape(shape))
    return bb.normalize(relax.op.reshape(value, shape)) if shape_of(value) != shape else value


def permuted(bb: Any, value: Any, axes: list[int]) -> Any:
    """Constants are permuted at once: TVM keeps the original of a folded one alive."""
    if isinstance(value, ir.GenericConst):
        return relax.const(np.ascontiguousarray(value.value.numpy().transpose(axes)))
    return bb.normalize(relax.op.permute_dims(value, axes))


def cut(bb: Any, value: Any, axis: int, begin: int, end: int) -> Any:
    if isinstance(value, ir.GenericConst):
        cut = [slice(None)] * axis + [slice(begin, end)]
        return relax.const(np.ascontiguousarray(value.value.numpy()[tuple(cut)]))
    return bb.normalize(relax.op.strided_slice(value, [axis], [begin], [end]))
