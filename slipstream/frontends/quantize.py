"""A float32 ONNX model in 8 bits, by ONNX Runtime's own quantiser, and how far it is from the original.

Weights get a scale for each filter, activations one for each tensor, from the ranges seen on calibration data. Layers
can be left in float32: by name, or those that add the most error until the outputs are close enough.
"""

from __future__ import annotations

import logging
import platform
import secrets
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from slipstream.errors import InputError, ModelError, first_line
from slipstream.frontends import onnx_run
from slipstream.machine.exact_onnx import cpu_session

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]

ACTIVATIONS = ("signed", "unsigned")
_WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_OF_LEVELS = "_DequantizeLinear_Output"
# What the quantiser merges with the layer before it.
_MERGED = ("Relu", "Clip")


@dataclass(frozen=True)
class LayerError:
    """How far a layer's output is from float32, and how much of that the layer itself adds; relative to the values."""

    name: str
    kind: str
    error: float
    added: float


@dataclass(frozen=True)
class QuantizedModel:
    """`errors` of the outputs on the calibration data by name, relative: the root of the mean square over that of the
    values. `kept` are layers in float32."""

    path: Path
    errors: dict[str, float]
    layers: tuple[LayerError, ...]
    kept: tuple[str, ...]
    samples: int

    @property
    def error(self) -> float:
        """That of the worst output."""
        return max(self.errors.values(), default=0.0)


def quantize(
    model: str | Path,
    output: Path,
    calibration: Mapping[str, Array] | None = None,
    *,
    random_samples: int = 0,
    keep_float: Collection[str] = (),
    most_error: float | None = None,
    activations: str | None = None,
    compare: bool = True,
) -> QuantizedModel:
    """Write the ONNX file or zoo model `model` in 8 bits (QDQ) to `output`.

    `calibration` has an array for each input, with one sample after the other along a first axis of its own or along
    the batch. Layers in `keep_float` stay as they are; with `most_error`, so do the layers that add the most error,
    until the outputs' is no larger. `activations` are signed or unsigned bytes, without it whichever this machine's
    instructions, and so its runtimes, take: unsigned ones on x86-64. Without `compare` no errors are computed, which
    takes half the time. A file that is at `output` stays until the new one is finished.
    """
    activations = activations or _usual_activations()
    if activations not in ACTIVATIONS:
        raise InputError(f"there are no activations {activations!r}: choose from {', '.join(ACTIVATIONS)}")
    if output.is_dir():
        raise InputError(f"{output} is a directory: give the ONNX file to write")
    with tempfile.TemporaryDirectory() as folder:
        original = _prepared(_read(model), Path(folder))
        feeds = _feeds(original, calibration, random_samples)
        names = [node.name for node in onnx.load(str(original), load_external_data=False).graph.node]
        if unknown := sorted(set(keep_float) - set(names)):
            raise ModelError(f"the model has no layer {unknown[0]!r}: 'slipstream quantize --layers' lists their names")
        kept, more = list(dict.fromkeys(keep_float)), 1
        with _taking_the_place_of(output) as unfinished:
            while True:
                _quantize(original, unfinished, feeds, kept, activations)
                if not compare and most_error is None:
                    return QuantizedModel(output, {}, (), tuple(kept), len(feeds))
                errors, layers = _compare(original, unfinished, feeds, kept)
                worst = [layer.name for layer in sorted(layers, key=lambda layer: -layer.added)]
                if most_error is None or max(errors.values(), default=0.0) <= most_error or not worst:
                    return QuantizedModel(output, errors, tuple(layers), tuple(kept), len(feeds))
                kept += worst[:more]
                more *= 2


@contextmanager
def _taking_the_place_of(output: Path) -> Iterator[Path]:
    """A file beside `output` that is renamed to it when the block ends well."""
    unfinished = output.with_name(f".{output.name}-{secrets.token_hex(4)}")
    try:
        yield unfinished
        unfinished.replace(output)
    except OSError as error:
        raise InputError(f"{output} cannot be written ({error.strerror}): choose another path with -o") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _usual_activations() -> str:
    """The bytes that dot products take on this machine: x86-64's have an unsigned and a signed operand."""
    return "unsigned" if platform.machine() == "x86_64" else "signed"


def _read(model: str | Path) -> onnx.ModelProto:
    if str(model).startswith("zoo:"):
        from slipstream.frontends import zoo

        proto = zoo.build(str(model).removeprefix("zoo:"))
        for value in proto.graph.input:
            value.type.tensor_type.shape.dim[0].dim_value = 1
        return proto
    path = Path(model)
    if not path.is_file():
        raise ModelError(f"there is no file {path}: give an ONNX file in float32 or a zoo name such as zoo:resnet18")
    try:
        return onnx.load(str(path))
    except PermissionError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:
        raise ModelError(f"{path} is not an ONNX model: only those can be quantised") from error


def _prepared(proto: onnx.ModelProto, folder: Path) -> Path:
    """The model as the quantiser wants it: shapes inferred, batch norms folded, every node with a name."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if any("QuantizeLinear" in node.op_type for node in proto.graph.node):
        raise ModelError("the model is quantised already: give the one in float32")
    for number, node in enumerate(proto.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    given, folded, prepared = (folder / f"{name}.onnx" for name in ("given", "folded", "prepared"))
    onnx.save(proto, str(given))
    # The quantiser's own preparation leaves batch norms as they are in some versions of ONNX Runtime, such as 1.30.
    onnx_run.session(given, save_to=folded)
    try:
        with _without_logging():
            quant_pre_process(str(folded), str(prepared), skip_optimization=True, skip_symbolic_shape=True)
    except Exception as error:
        raise ModelError(f"ONNX Runtime cannot prepare the model for quantisation: {first_line(error)}") from error
    return prepared


def _feeds(model: Path, calibration: Mapping[str, Array] | None, random_samples: int) -> list[Feed]:
    graph = onnx.load(str(model), load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in constants}
    if calibration is None and not random_samples:
        raise InputError(
            "there are no calibration data: give --calibration FILE.npz with real inputs, "
            "or --random-calibration 8 if the numbers may be meaningless"
        )
    if calibration is None:
        rng = np.random.default_rng(0)
        return [{name: _random(value, rng) for name, value in inputs.items()} for _ in range(random_samples)]
    if missing := sorted(inputs.keys() - calibration.keys()):
        raise InputError(f"the calibration data lack the input {missing[0]!r}: they need {', '.join(inputs)}")
    samples = {name: _samples(name, calibration[name], value) for name, value in inputs.items()}
    if len({len(own) for own in samples.values()}) > 1 or not all(samples.values()):
        counts = ", ".join(f"{name} {len(own)}" for name, own in samples.items())
        raise InputError(f"the calibration data need the same number of samples for each input, not {counts}")
    return [dict(zip(samples, own, strict=True)) for own in zip(*samples.values(), strict=True)]


def _samples(name: str, array: Array, value: onnx.ValueInfoProto) -> list[Array]:
    dims = value.type.tensor_type.shape.dim
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if array.ndim == len(dims) + 1:
        found = list(array)
    elif array.ndim == len(dims) > 0:
        batch = dims[0].dim_value or 1
        found = [array[i : i + batch] for i in range(0, len(array) - batch + 1, batch)]
    else:
        found = [array] if array.ndim == len(dims) else []
    expected = [dim.dim_value for dim in dims]
    fits = found and all(not want or want == got for want, got in zip(expected, found[0].shape, strict=False))
    if not fits or found[0].ndim != len(dims):
        text = "x".join(str(extent or "?") for extent in expected)
        raise InputError(f"calibration data of shape {array.shape} do not fit the input {name!r}, which is {text}")
    return [one.astype(dtype) for one in found]


def _random(value: onnx.ValueInfoProto, rng: np.random.Generator) -> Array:
    tensor = value.type.tensor_type
    shape = [dim.dim_value or 1 for dim in tensor.shape.dim]
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if dtype.kind != "f":
        raise InputError(f"the input {value.name!r} has numbers that mean something: give --calibration FILE.npz")
    return rng.standard_normal(shape).astype(dtype)


def _quantize(original: Path, output: Path, feeds: Sequence[Feed], kept: Sequence[str], activations: str) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(feeds)

        def get_next(self) -> Feed | None:
            return next(self._left, None)

    try:
        with _without_logging():
            quantize_static(
                str(original),
                str(output),
                Reader(),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QInt8 if activations == "signed" else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=list(kept),
            )
    except OSError:
        raise
    except Exception as error:
        raise ModelError(f"ONNX Runtime cannot quantise the model: {first_line(error)}") from error


def _compare(
    original: Path, quantised: Path, feeds: Sequence[Feed], kept: Sequence[str]
) -> tuple[dict[str, float], list[LayerError]]:
    """The errors of the outputs and of each layer with weights that is in 8 bits, in the model's order."""
    before, after = onnx.load(str(original)), onnx.load(str(quantised))
    inner = {name for node in after.graph.node for name in node.output}
    outputs = [output.name for output in before.graph.output]
    pairs = {name: name + _OF_LEVELS for name in _tensors(before.graph) if name + _OF_LEVELS in inner}
    wanted = list(dict.fromkeys([*outputs, *pairs]))
    expected = _run(before, wanted, feeds)
    actual = _run(after, [pairs.get(name, name) if name not in outputs else name for name in wanted], feeds)
    error_of = {name: _error(expected[i], actual[i]) for i, name in enumerate(wanted)}
    consumers = {name: node for node in before.graph.node for name in node.input}
    layers = []
    for node in before.graph.node:
        seen = node.output[0]
        if seen not in error_of and (next_node := consumers.get(seen)) is not None and next_node.op_type in _MERGED:
            seen = next_node.output[0]
        if node.op_type in _WEIGHTED and seen in error_of and node.name not in kept:
            came = max((error_of.get(name, 0.0) for name in node.input), default=0.0)
            added = max(0.0, error_of[seen] ** 2 - came**2) ** 0.5
            layers.append(LayerError(node.name, node.op_type, error_of[seen], added))
    return {name: error_of[name] for name in outputs}, layers


def _tensors(graph: onnx.GraphProto) -> list[str]:
    return [*(value.name for value in graph.input), *(name for node in graph.node for name in node.output if name)]


def _run(proto: onnx.ModelProto, names: Sequence[str], feeds: Sequence[Feed]) -> list[list[Array]]:
    """For each tensor, its values on all samples."""
    import onnxruntime

    known = {output.name for output in proto.graph.output}
    inputs = {value.name for value in proto.graph.input}
    for name in names:
        if name not in known and name not in inputs:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
            known.add(name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = cpu_session(proto.SerializeToString(), options)
    computed = [name for name in names if name in known]
    values: dict[str, list[Array]] = {name: [] for name in names}
    for feed in feeds:
        results = dict(zip(computed, session.run(computed, feed), strict=True))
        for name in names:
            values[name].append(results[name] if name in results else feed[name])
    return [values[name] for name in names]


def _error(expected: Sequence[Array], actual: Sequence[Array]) -> float:
    difference = sum(float(np.square(a.astype(np.float64) - e).sum()) for e, a in zip(expected, actual, strict=True))
    size = sum(float(np.square(e.astype(np.float64)).sum()) for e in expected)
    return float(np.sqrt(difference / size)) if size else float(difference > 0)


@contextmanager
def _without_logging() -> Any:
    """Without the quantiser's warnings about steps that are done here."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
