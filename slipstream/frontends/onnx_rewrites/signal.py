"""Fourier transforms as products with constant matrices of cosines and sines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from slipstream.frontends.onnx_rewrites.builder import Array, Builder, Rewrite, attributes_of, inputs_of, refusal


def _fourier(points: int, inputs: int, outputs: int, inverse: bool) -> tuple[Array, Array]:
    """(real, imaginary) parts of the matrix [inputs, outputs] of a transform over `points`."""
    # The product is reduced first: float64 sines of large angles are less exact.
    turns = (np.outer(np.arange(inputs), np.arange(outputs)) % points) / points
    angle = 2 * np.pi * turns * (1 if inverse else -1)
    scale = 1 / points if inverse else 1
    return np.cos(angle) * scale, np.sin(angle) * scale


def _dft(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    x, length, axis_input = inputs_of(node, 3)
    attributes = attributes_of(node)
    shape = g.static_shape(node)
    rank = len(shape)
    default = attributes.get("axis", 1) if g.opset < 20 else -2
    axis = int(g.required(node, 2, "its axis").reshape(-1)[0]) if axis_input else default
    axis %= rank
    inverse, onesided = bool(attributes.get("inverse", 0)), bool(attributes.get("onesided", 0))
    default = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    points = int(g.required(node, 1, "its length").reshape(-1)[0]) if length else default
    dtype = g.dtype(x)
    used = min(points // 2 + 1 if inverse and onesided else points, shape[axis])
    if used < shape[axis]:
        x = g.slice(x, axis, 0, used)
    # [..., used, parts], the transformed axis last but one.
    order = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    x = g.transpose(x, *order)
    parts = shape[-1]
    outer = [shape[a] for a in order[:-2]]
    if inverse and onesided:
        matrix = _real_inverse(points, used)
        flat = g.reshape(x, -1, used * parts)
        result, outputs, out_parts = g.op("MatMul", flat, g.constant(matrix, dtype)), points, 1
    else:
        outputs, out_parts = points // 2 + 1 if onesided else points, 2
        real, imaginary = _fourier(points, used, outputs, inverse)
        rows = [np.stack([real, imaginary], -1)]
        if parts == 2:
            rows.append(np.stack([-imaginary, real], -1))
        matrix = np.stack(rows, 1).reshape(used * parts, outputs * 2)
        result = g.op("MatMul", g.reshape(x, -1, used * parts), g.constant(matrix, dtype))
    result = g.reshape(result, *outer, outputs, out_parts)
    return [g.transpose(result, *(order.index(a) for a in range(rank)))]


def _real_inverse(points: int, used: int) -> Array:
    """From half a spectrum [used, 2] to real points: the other half is its conjugate."""
    cosines, sines = _fourier(points, used, points, inverse=True)
    twice = np.where((np.arange(used) == 0) | (2 * np.arange(used) == points), 1.0, 2.0)[:, None]
    return np.stack([cosines * twice, -sines * twice], 1).reshape(used * 2, points)


def _stft(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    """Frames are gathered, then multiplied by the window and the Fourier matrix in one product."""
    signal, _, window, frame_length = inputs_of(node, 4)
    step = int(g.required(node, 1, "its step").reshape(-1)[0])
    shape = g.static_shape(node)
    if len(shape) == 3 and shape[2] == 2:
        raise refusal(node, "a complex signal is not supported")
    batch, samples = shape[:2]
    length = g.static_shape(node, 2)[0] if window else 0
    points = int(g.required(node, 3, "its frame length").reshape(-1)[0]) if frame_length else length
    weights = g.value(window) if window else np.ones(points)
    frames = (samples - points) // step + 1
    bins = points // 2 + 1 if attributes_of(node).get("onesided", 1) else points
    real, imaginary = _fourier(points, points, bins, inverse=False)
    matrix = np.stack([real, imaginary], -1).reshape(points, bins * 2)
    if weights is not None:
        matrix *= np.pad(weights, (0, points - len(weights)))[:, None]
    places = np.arange(frames)[:, None] * step + np.arange(points)
    gathered = g.op("Gather", g.reshape(signal, batch, samples), g.constant(places, np.int64), axis=1)
    if weights is None:
        if length != points:
            raise refusal(node, "its window depends on the data and is shorter than a frame")
        gathered = g.op("Mul", gathered, window)
    return [g.reshape(g.op("MatMul", gathered, g.constant(matrix, g.dtype(signal))), batch, frames, bins, 2)]


REWRITES: dict[tuple[str, str], Rewrite] = {("", "DFT"): _dft, ("", "STFT"): _stft}
