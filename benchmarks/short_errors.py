"""How far each operator of a model in 8 bits is from ONNX Runtime's, on ONNX Runtime's own inputs (a minute a model).

A deep model of many roundings multiplies differences of one level, so that its outputs say little about single
operators. Here the model is cut at every 8-bit tensor that a convolution or matmul reads: what it reads becomes an
input and gets ONNX Runtime's values, what was computed for it becomes an output. Between two cuts are the operators
that are joined in the whole model as well. ONNX Runtime runs without its optimisations, operator by operator as ONNX
defines them. Ours are default programs or, with `--sessions build/latency`, those that `benchmarks.latency` tuned.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import short_types
from benchmarks.runner import run
from benchmarks.spread import table

QUICK = {"models": ["tiny_cnn"]}
_PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_GIVEN = "_given"
_MOST_ROWS = 5

Array = np.ndarray[Any, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=list(short_types.MODELS))
    parser.add_argument("--sessions", type=Path, help="take programs of FOLDER/MODEL/tuned-int8")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    from benchmarks.rivals.models import model_files

    for model in options.models:
        folder = (options.sessions or options.work) / model
        files = model_files(model, folder / "files")
        path = short_types.quantised(files, folder / "int8.onnx")
        winners: Mapping[str, Any] = {}
        if options.sessions:
            from benchmarks.ended_session import EndedSession

            winners = EndedSession(folder / "tuned-int8").winners
        with np.load(files["feeds"]) as feeds:
            yield model, {"tuned": bool(winners), **errors(onnx.load(str(path)), dict(feeds), winners)}


def errors(proto: onnx.ModelProto, feeds: Mapping[str, Array], winners: Mapping[str, Any]) -> dict[str, Any]:
    """For each tensor at which a quantised model is cut: the node that rounds it, how many values it has, how many of
    them differ and by how many levels at most. `outputs` are the relative errors of the model's own outputs, `inherent`
    by how much (root mean square) ONNX Runtime with its optimisations differs from itself in them, uncut."""
    names = tensors_of_products(proto.graph)
    expected = reference_values(proto, [*names, *(output.name for output in proto.graph.output)], feeds)
    inputs = {**feeds, **{name + _GIVEN: expected[name] for name in names}}
    found = our_values(cut_at(proto, {name: expected[name] for name in names}), inputs, winners)
    makers = {name: node.name for node in proto.graph.node for name in node.output}
    rows = []
    for name in names:
        levels = np.abs(found[name].astype(np.int32) - expected[name].astype(np.int32))
        rows.append([makers[name], levels.size, int((levels > 0).sum()), int(levels.max(initial=0))])
    others = {name: value for name, value in expected.items() if name not in names}
    relative = {name: float(np.abs(found[name] - value).max() / np.abs(value).max()) for name, value in others.items()}
    optimised = reference_values(proto, list(others), feeds, optimise=True)
    apart = [_root_mean_square(optimised[name] - value) / _root_mean_square(value) for name, value in others.items()]
    return {"tensors": rows, "outputs": relative, "inherent": max(apart)}


def tensors_of_products(graph: onnx.GraphProto) -> list[str]:
    """The computed 8-bit tensors that convolutions and matmuls read behind a DequantizeLinear."""
    makers = {name: node for node in graph.node for name in node.output}
    read = [makers.get(name) for node in graph.node if node.op_type in _PRODUCTS for name in node.input[:2]]
    levels = [node.input[0] for node in read if node is not None and node.op_type == "DequantizeLinear"]
    return [name for name in dict.fromkeys(levels) if name in makers]


def cut_at(proto: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with these tensors as outputs, and inputs of theirs for all that read them."""
    cut = onnx.ModelProto()
    cut.CopyFrom(proto)
    for node in cut.graph.node:
        node.input[:] = [name + _GIVEN if name in values else name for name in node.input]
    known = {output.name for output in cut.graph.output}
    for name, value in values.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        cut.graph.input.append(onnx.helper.make_tensor_value_info(name + _GIVEN, kind, value.shape))
        if name not in known:
            cut.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, value.shape))
    return cut


def reference_values(
    proto: onnx.ModelProto, names: list[str], feeds: Mapping[str, Array], optimise: bool = False
) -> dict[str, Array]:
    """What ONNX Runtime has for these tensors if it runs the model as it is or, to `optimise` it, in its own way."""
    import onnxruntime

    watched = onnx.ModelProto()
    watched.CopyFrom(proto)
    known = {output.name for output in proto.graph.output}
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(watched.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


def our_values(proto: onnx.ModelProto, inputs: Mapping[str, Array], winners: Mapping[str, Any]) -> dict[str, Array]:
    """What our programs give for all outputs of the model; nothing is verified."""
    from slipstream.artifact.runtime import TvmExecutor
    from slipstream.frontends import load_model
    from slipstream.graph.build import apply_programs, build
    from slipstream.graph.prepare import prepare
    from slipstream.machine.target import resolve_target
    from slipstream.program.scheduled import schedule_with

    loaded, target = load_model(proto), resolve_target("cpu")
    prepared, _ = prepare(loaded.module, target)
    built = build(apply_programs(prepared, target, schedule_with(winners, target)), target)
    run = TvmExecutor(built.executable, built.weights, loaded.inputs, loaded.outputs, target.threads)
    return {name: np.asarray(value) for name, value in run(dict(inputs)).items()}


def markdown(data: Mapping[str, Any]) -> str:
    rows = []
    for model, result in data.items():
        tensors = result["tensors"]
        values, differ = sum(row[1] for row in tensors), sum(row[2] for row in tensors)
        most = max((row[3] for row in tensors), default=0)
        other = max(result["outputs"].values(), default=0.0)
        programs = "tuned" if result["tuned"] else "default"
        cells = [f"{100 * differ / max(values, 1):.4f} %", most, f"{other:.1e}", f"{result['inherent']:.1e}"]
        rows.append([model, programs, len(tensors), values, *cells])
    columns = [
        "model",
        "programs",
        "tensors",
        "values",
        "differ",
        "most levels",
        "largest error of the outputs",
        "ONNX Runtime to itself, uncut",
    ]
    lines = table(columns, rows)
    for model, result in data.items():
        worst = sorted(result["tensors"], key=lambda row: (-row[3], -row[2] / row[1]))[:_MOST_ROWS]
        lines += ["", f"### {model}", ""]
        cells = [[name, size, f"{100 * count / size:.4f} %", most] for name, size, count, most in worst]
        lines += table(["rounded by, the worst first", "values", "differ", "most levels"], cells)
    return "\n".join(lines) + "\n"


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for model, result in data.items():
        tensors = result["tensors"]
        values, differ = sum(row[1] for row in tensors), sum(row[2] for row in tensors)
        found[f"{model} differ"] = f"{100 * differ / max(values, 1):.4f}"
        found[f"{model} inherent"] = f"{100 * result['inherent']:.1f}"
        found[f"{model} most levels"] = str(max((row[3] for row in tensors), default=0))
    return found


if __name__ == "__main__":
    run(__name__)
