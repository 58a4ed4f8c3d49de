"""Layers of ResNet-50, MobileNet v2 and BERT in short types: default programs, against the CPU's measured peak.

    python -m benchmarks.short_layers [--seconds 170] [--only bfloat16]

One line for each layer and each instruction that the CPU has: GMAC/s, the part of the peak, and the largest error of
the result relative to its largest value. Each runs in a process of its own, so one that crashes is a line as well.
Operators are timed with their weights in the caches. There is no peak of AVX512-BF16 itself: it is counted against
float32's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_JOB_SECONDS = 30.0
_AMX = ("amx-tile", "amx-int8", "amx-bf16", "amx-fp16", "amx-complex")


@dataclass(frozen=True)
class Layer:
    """A convolution with a border that keeps the image's size; a matmul is one of a single row of pixels."""

    name: str
    height: int
    width: int
    channels: int
    filters: int
    kernel: int = 1
    stride: int = 1

    @property
    def multiplications(self) -> int:
        rows, columns = -(-self.height // self.stride), -(-self.width // self.stride)
        return rows * columns * self.filters * self.kernel**2 * self.channels


LAYERS = (
    Layer("resnet50 7x7/2 3-64", 224, 224, 3, 64, 7, 2),
    Layer("resnet50 1x1 64-64", 56, 56, 64, 64),
    Layer("resnet50 3x3 64-64", 56, 56, 64, 64, 3),
    Layer("resnet50 1x1 64-256", 56, 56, 64, 256),
    Layer("resnet50 3x3/2 128-128", 56, 56, 128, 128, 3, 2),
    Layer("resnet50 1x1 512-128", 28, 28, 512, 128),
    Layer("resnet50 3x3 256-256", 14, 14, 256, 256, 3),
    Layer("resnet50 1x1 256-1024", 14, 14, 256, 1024),
    Layer("resnet50 3x3 512-512", 7, 7, 512, 512, 3),
    Layer("mobilenet_v2 1x1 24-144", 56, 56, 24, 144),
    Layer("mobilenet_v2 1x1 384-64", 14, 14, 384, 64),
    Layer("mobilenet_v2 1x1 960-320", 7, 7, 960, 320),
    Layer("bert 128x768x768", 1, 128, 768, 768),
    Layer("bert 128x768x3072", 1, 128, 768, 3072),
    Layer("bert 128x3072x768", 1, 128, 3072, 768),
)


@dataclass(frozen=True)
class Kind:
    """A type and what computes in it. `make` gives the operator, its arguments and what comes of them."""

    name: str
    target: Any
    make: Callable[[Layer, Any], tuple[Any, list[Array], Array]]
    is_integer: bool = False


def kinds_of(target: Any) -> list[Kind]:
    """Those that the machine has."""
    from slipstream.machine.dot_product import dot_product_of, tile_operation_of

    vectors = replace(target, features=tuple(f for f in target.features if f not in _AMX))
    dot = dot_product_of(vectors)
    found = []
    if dot.instruction:
        found.append(Kind(f"int8 {dot.name}", vectors, _integer, is_integer=True))
    if tile_operation_of(target, "uint8") is not None:
        found.append(Kind("int8 AMX", target, _integer, is_integer=True))
    if vectors.has_arithmetic_in("bfloat16"):
        found.append(Kind("bfloat16 AVX512-BF16", replace(vectors, dtype="bfloat16"), _bfloat16))
    if tile_operation_of(target, "bfloat16") is not None:
        found.append(Kind("bfloat16 AMX", replace(target, dtype="bfloat16"), _bfloat16))
    if target.has_arithmetic_in("float16"):
        found.append(Kind("float16", replace(vectors, dtype="float16"), _float16))
    return found


def _integer(layer: Layer, target: Any) -> tuple[Any, list[Array], Array]:
    from tvm import te

    from slipstream.graph.cpu.integer_compute import (
        convolution,
        pack_columns,
        requantised,
        rounded_limits,
        rows_of_pixels,
    )
    from slipstream.machine.dot_product import dot_product_of

    dot = dot_product_of(target)
    rng = np.random.default_rng(0)
    low, high = np.iinfo(dot.data_type).min, np.iinfo(dot.data_type).max
    image = rng.integers(low, high + 1, (1, layer.height, layer.width, layer.channels)).astype(dot.data_type)
    weights = rng.integers(-127, 128, (layer.filters, layer.kernel, layer.kernel, layer.channels)).astype(np.int8)
    packed = pack_columns(weights if layer.channels % dot.group == 0 else rows_of_pixels(weights, dot), dot)
    zero, offset = np.array([3], dot.data_type), rng.integers(-99, 99, layer.filters).astype(np.int32)
    scale = np.full(layer.filters, np.float32(1 / (128 * np.sqrt(weights[0].size))))
    limits = rounded_limits(low - 3, high - 3)
    given = [image, packed, zero, offset, scale, limits, zero]
    tensors = [te.placeholder(a.shape, str(a.dtype), name=f"a{n}") for n, a in enumerate(given)]
    sums = convolution(*tensors[:3], _window(layer), dot)
    func = te.create_prim_func([*tensors, requantised(sums, *tensors[3:], layer.filters)])
    exact = (_convolved(layer, image, weights, 3) + offset) * scale
    return func, given, np.clip(np.rint(exact) + 3, low, high).astype(dot.data_type)


def _bfloat16(layer: Layer, target: Any) -> tuple[Any, list[Array], Array]:
    import ml_dtypes
    from tvm import te, tirx

    from slipstream.graph.cpu.integer_compute import convolution, pack_columns, rows_of_pixels
    from slipstream.machine.dot_product import PAIRS

    image, weights, bias = _floats(layer, ml_dtypes.bfloat16)
    packed = pack_columns(weights if layer.channels % PAIRS.group == 0 else rows_of_pixels(weights, PAIRS), PAIRS)
    given = [image, packed, bias]
    tensors = [te.placeholder(a.shape, str(a.dtype), name=f"a{n}") for n, a in enumerate(given)]
    sums = convolution(*tensors[:2], None, _window(layer), PAIRS)
    func = te.create_prim_func([*tensors, _with_bias(te, tirx, sums, tensors[2], layer, "bfloat16")])
    return func, given, np.maximum(_convolved(layer, image, weights, 0) + bias, 0)


def _float16(layer: Layer, target: Any) -> tuple[Any, list[Array], Array]:
    from tvm import te, tirx

    from slipstream.graph.cpu.half_elements import compute_in_halves
    from slipstream.graph.cpu.half_sums import sum_halves

    image, weights, bias = _floats(layer, np.float16)
    data, filters, of_bias = (
        te.placeholder(a.shape, str(a.dtype), name=f"a{n}") for n, a in enumerate((image, weights, bias))
    )
    border, stride = layer.kernel // 2, layer.stride
    padded = data
    if border:
        shape = (1, layer.height + 2 * border, layer.width + 2 * border, layer.channels)

        def pixel(n: Any, y: Any, x: Any, c: Any) -> Any:
            inside = [y >= border, y < border + layer.height, x >= border, x < border + layer.width]
            value = data[n, y - border, x - border, c]
            return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, "float16"))

        padded = te.compute(shape, pixel, name="pad")
    axes = [te.reduce_axis((0, e), name=f"r{n}") for n, e in enumerate((layer.kernel, layer.kernel, layer.channels))]

    def product(n: Any, y: Any, x: Any, f: Any) -> Any:
        value = padded[n, y * stride + axes[0], x * stride + axes[1], axes[2]].astype("float32")
        return te.sum(value * filters[f, axes[0], axes[1], axes[2]].astype("float32"), axis=axes)

    shape = (1, -(-layer.height // stride), -(-layer.width // stride), layer.filters)
    sums = te.compute(shape, product, name="conv2d")
    func = te.create_prim_func([data, filters, of_bias, _with_bias(te, tirx, sums, of_bias, layer, "float16")])
    halves = compute_in_halves(sum_halves(func)).with_attr("layout_free_buffers", [1])
    return halves, [image, weights, bias], np.maximum(_convolved(layer, image, weights, 0) + bias, 0)


def _with_bias(te: Any, tirx: Any, sums: Any, bias: Any, layer: Layer, dtype: str) -> Any:
    def value(*at: Any) -> Any:
        return tirx.max(sums[at] + bias[at[-1]], tirx.const(0, "float32")).astype(dtype)

    return te.compute((*sums.shape[:-1], layer.filters), value, name="result")


def _floats(layer: Layer, dtype: Any) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    image = rng.standard_normal((1, layer.height, layer.width, layer.channels)).astype(dtype)
    weights = rng.standard_normal((layer.filters, layer.kernel, layer.kernel, layer.channels))
    return image, (weights / np.sqrt(weights[0].size)).astype(dtype), rng.standard_normal(layer.filters, np.float32)


def _window(layer: Layer) -> Any:
    from slipstream.graph.cpu.integer_compute import Window

    return Window((layer.kernel,) * 2, (layer.stride,) * 2, (layer.kernel // 2,) * 4, (1, 1))


def _convolved(layer: Layer, image: Array, weights: Array, border: float) -> Array:
    wide = ((0, 0), *((layer.kernel // 2,) * 2,) * 2, (0, 0))
    padded = np.pad(image.astype(np.float32), wide, constant_values=border)
    rows, columns = -(-layer.height // layer.stride), -(-layer.width // layer.stride)
    total = np.zeros((rows * columns, layer.filters), np.float64)
    for y in range(layer.kernel):
        for x in range(layer.kernel):
            part = padded[0, y :: layer.stride, x :: layer.stride][:rows, :columns].reshape(-1, layer.channels)
            total += part.astype(np.float64) @ weights[:, y, x].T.astype(np.float64)
    return total.reshape(1, rows, columns, layer.filters)


def measure(kind: Kind, layer: Layer) -> tuple[float, float, str]:
    """Seconds of the layer, its error, and the instruction for tiles in its program, if any."""
    import tvm

    from slipstream.graph.forms import schedule_untuned
    from slipstream.machine.threads import use_threads
    from slipstream.measure.lowering import generate, lower

    func, given, expected = kind.make(layer, kind.target)
    scheduled = schedule_untuned(func, kind.target)
    lowered = lower(tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")}), kind.target)
    for packing in lowered.packings:
        given[packing.index] = packing(given[packing.index])
    use_threads(kind.target.threads)
    code = generate(lowered, kind.target)
    output = str(func.params[-1].ty.dtype)
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(a)) for a in given]
    result = tvm.runtime.empty(expected.shape, output)
    code["main"](*tensors, result)
    error = float(np.abs(result.numpy().astype(np.float64) - expected).max() / np.abs(expected).max())
    evaluate = code.time_evaluator("main", tvm.cpu(0), number=3, repeat=7, min_repeat_ms=10)
    tiles = next((name for name in ("tdpbusd", "tdpbf16ps") if name in str(scheduled)), "")
    return float(np.median(evaluate(*tensors, result).results)), error, tiles


def _child(pipe: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    try:
        pipe.send(function(*arguments))
    except Exception as error:
        pipe.send((str(error).strip().splitlines() or [type(error).__name__])[-1][:120])


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in a forked process, or a text that says how it ended."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, function, arguments))
    child.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(_JOB_SECONDS) else f"took more than {_JOB_SECONDS:g} s"
    except EOFError:
        child.join()
        code = child.exitcode or 0
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    finally:
        child.kill()
        child.join()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.short_layers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=170.0, help="when to stop")
    parser.add_argument("--only", default="", help="part of a kind's or a layer's name")
    options = parser.parse_args()
    import slipstream.graph.forms
    import slipstream.measure.lowering  # noqa: F401
    from slipstream.machine.speed import measure_peak_flops, measure_peak_integer_ops
    from slipstream.machine.target import resolve_target

    target = resolve_target()
    deadline = time.monotonic() + options.seconds
    print(f"{target}: {' '.join(target.features)}")
    for kind in kinds_of(target):
        chosen = [layer for layer in LAYERS if options.only in f"{kind.name} {layer.name}"]
        if not chosen:
            continue
        peak = apart(measure_peak_integer_ops if kind.is_integer else measure_peak_flops, kind.target, 0.3)
        known = isinstance(peak, float)
        print(f"\n{kind.name}: peak {peak / 2e9:.0f} GMAC/s" if known else f"\n{kind.name}: peak {peak}", flush=True)
        for layer in chosen:
            if time.monotonic() > deadline:
                print("the time is up: the rest is left out")
                return
            found = apart(measure, kind, layer)
            if isinstance(found, str):
                print(f"  {layer.name:26} {found}", flush=True)
                continue
            seconds, error, tiles = found
            speed = layer.multiplications / seconds
            part = f"{100 * 2 * speed / peak:5.1f} %" if known else ""
            rate = f"{speed / 1e9:8.0f} GMAC/s"
            print(f"  {layer.name:26} {1e6 * seconds:8.1f} us {rate} {part}  error {error:.1e} {tiles}", flush=True)


if __name__ == "__main__":
    main()
