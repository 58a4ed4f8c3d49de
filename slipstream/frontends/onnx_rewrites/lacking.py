"""Forms of standard operators that ONNX Runtime or TVM lack, by forms that they have."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from slipstream.frontends.onnx_rewrites.builder import Builder, Rewrite, attributes_of


def _mod(g: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """A remainder of floats with the sign of the divisor, by the one with the sign of the dividend."""
    x, y = node.input
    if attributes_of(node).get("fmod", 0) or g.dtype(x).kind != "f":
        return None
    rest = g.op("Mod", x, y, fmod=1)
    zero = g.scalar(0, x)
    other_sign = g.op("Xor", g.op("Less", rest, zero), g.op("Less", y, zero))
    wrong = g.op("And", other_sign, g.op("Not", g.op("Equal", rest, zero)))
    return [g.op("Where", wrong, g.op("Add", rest, y), rest)]


def _pow(g: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """A power by an unsigned integer."""
    x, exponent = node.input
    return [g.op("Pow", x, g.cast(exponent, g.dtype(x)))] if g.dtype(exponent).kind == "u" else None


def _space_to_depth(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    """Either order of the channels that blocks become."""
    attributes = attributes_of(node)
    size, mode = attributes["blocksize"], attributes.get("mode", "DCR")
    batch, channels, height, width = g.static_shape(node)
    blocks = g.reshape(node.input[0], batch, channels, height // size, size, width // size, size)
    order = [0, 1, 3, 5, 2, 4] if mode in ("CRD", b"CRD") else [0, 3, 5, 1, 2, 4]
    moved = g.op("Transpose", blocks, perm=order)
    return [g.reshape(moved, batch, channels * size * size, height // size, width // size)]


REWRITES: dict[tuple[str, str], Rewrite] = {("", "Mod"): _mod}
FOR_ONNX_RUNTIME: dict[tuple[str, str], Rewrite] = {("", "Pow"): _pow, ("", "SpaceToDepth"): _space_to_depth}
