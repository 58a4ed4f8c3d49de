"""ONNX's own node tests: how many compile, untuned, and match the expected outputs (30 minutes).

Every case of `onnx.backend.test` is imported, compiled with default programs and run on the inputs that come with it.
Inputs that ONNX defines as shapes, axes or counts are made constants first, as they are in models. A case that is not
right is then tried as a part of a model that has something else to compile, and may be left to ONNX Runtime. Each case
runs in a forked copy of one process, so that a crash ends that case alone.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from slipstream.tvm_bridge.imports import import_tvm_without_torch

import_tvm_without_torch()

from benchmarks.runner import read, run  # noqa: E402
from slipstream.errors import SlipstreamError  # noqa: E402
from slipstream.processes.forked import Forked, ForkedCrashError  # noqa: E402

QUICK = {"only": "^test_(add|lstm|gemm)"}
FLOAT, OTHER = "float, static shapes", "integers, booleans and small floats, static shapes"
BY_DATA, NO_TENSOR = "size depends on the data, or random", "strings, sequences, optionals, training, ai.onnx.ml"
GROUPS = (FLOAT, OTHER, BY_DATA, NO_TENSOR)
RIGHT = "right"
SECONDS = 120

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}
_USUAL = _FLOATS | {
    onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
_BY_DATA = {"NonZero", "NonMaxSuppression", "Unique", "Compress", "Bernoulli", "ImageDecoder", "TfIdfVectorizer"}
# Inputs by position that hold a shape, axes, a count or an amount.
SETTINGS = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CastLike": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
_REDUCTIONS = "Reduce"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", help="cases whose name matches this regular expression")
    parser.add_argument("--failed", action="store_true", help="cases that were not right in the last results")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    known = {**(read("node_tests", options.out) or {"parts": {}})["parts"].get("cases", {}).get("data", {})}
    _import_everything()
    for number, case in enumerate(_cases(options, known)):
        known[case.name] = outcome(case)
        if options.only or options.failed:
            print(case.name, known[case.name], flush=True)
        if number % 100 == 99:
            yield "cases", known
    yield "cases", known


def _cases(options: argparse.Namespace, known: Mapping[str, Any]) -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    named = {case.name: case for case in cases}
    for case in cases:
        # A body is tested on the same inputs as the operator it defines.
        case.settings = settings_of(named.get(case.name.partition("_expanded")[0], case).model)
    if options.only:
        cases = [case for case in cases if re.search(options.only, case.name)]
    if options.failed:
        cases = [case for case in cases if known.get(case.name, {}).get("outcome") != RIGHT]
    return cases


def _import_everything() -> None:
    """Import what the copies need; nothing here may start a thread."""
    import slipstream.artifact.compile
    import slipstream.artifact.runtime
    import slipstream.frontends.onnx_import
    import slipstream.frontends.onnx_worker
    import slipstream.graph.build
    import slipstream.graph.prepare  # noqa: F401


def outcome(case: Any) -> dict[str, Any]:
    """What came of a case: its group, operator, and whether it is right or why not."""
    began = time.monotonic()
    result = _in_copy(lambda: _compile_and_compare(case))
    found = {"group": group(case.model), "operator": _operator(case), "outcome": _without_paths(result)[:300]}
    if result != RIGHT:
        found["partitioned"] = _without_paths(_in_copy(lambda: _partition_and_compare(case)))[:300]
    return {**found, "seconds": round(time.monotonic() - began, 2)}


def _in_copy(work: Callable[[], str]) -> str:
    copy = Forked(work)
    try:
        if select.select([copy], [], [], SECONDS)[0]:
            return copy.result()
        copy.cancel()
        return f"took more than {SECONDS} s"
    except ForkedCrashError as error:
        return f"crash: {error}"
    except SlipstreamError as error:
        return f"refused: {error}"
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[-1]
        return f"failed: {type(error).__name__}: {said}"


def _without_paths(text: str) -> str:
    """What ONNX Runtime says without its files and ours."""
    text = re.sub(r"(Load model from )?\S*/(fixed|clean)\.onnx failed:", "", text)
    text = re.sub(r"\S*/onnxruntime_src/\S*:\d+ .*?\) (?=[A-Z\w])", "", text)
    return re.sub(r"\S*/slipstream-\S*", "the model", text)


def _operator(case: Any) -> str:
    """The operator a case tests; its function body, where the case consists of that."""
    nodes = case.model.graph.node
    if "_expanded" not in case.name:
        return str(nodes[0].op_type)
    match = re.match(r"([A-Za-z]+)_test", next((name for node in nodes for name in node.output if "_test" in name), ""))
    return f"{match[1] if match else case.name.split('_')[1]} (body)"


def group(model: onnx.ModelProto) -> str:
    values = [*model.graph.input, *model.graph.output]
    operators = {node.op_type for node in model.graph.node}
    tensors = [value.type.tensor_type.elem_type for value in values if value.type.HasField("tensor_type")]
    if len(tensors) < len(values) or onnx.TensorProto.STRING in tensors:
        return NO_TENSOR
    if any(node.domain.startswith(("ai.onnx.ml", "ai.onnx.preview")) for node in model.graph.node):
        return NO_TENSOR
    if operators & _BY_DATA or any(name.startswith("Random") for name in operators):
        return BY_DATA
    if model.graph.name.startswith("test_training_dropout") and "zero_ratio" not in model.graph.name:
        return BY_DATA
    if any(kind not in _USUAL for kind in tensors):
        return OTHER
    return FLOAT if any(value.type.tensor_type.elem_type in _FLOATS for value in model.graph.output) else OTHER


def _compile_and_compare(case: Any) -> str:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    from slipstream.artifact.runtime import TvmExecutor
    from slipstream.artifact.write import tvm_errors
    from slipstream.frontends import load_model, sandbox
    from slipstream.graph.build import apply_programs, build
    from slipstream.graph.prepare import prepare
    from slipstream.machine.target import resolve_target

    target = resolve_target(threads=1)
    given, expected = case.data_sets[0]
    feeds = dict(zip([value.name for value in case.model.graph.input], given, strict=True))
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    bind_settings(model.graph, feeds, case.settings)
    with sandbox.in_this_process():
        loaded = load_model(model, shapes=_empty(feeds, model), partition=False)
    with tvm_errors(case.name):
        prepared, _ = prepare(loaded.module, target)
        built = build(apply_programs(prepared, target), target)
    compiled = TvmExecutor(built.executable, built.weights, loaded.inputs, loaded.outputs, 1)
    values = compiled({name: _array(feeds[name]) for name in (spec.name for spec in loaded.inputs)})
    for value, correct in zip(values, expected, strict=True):
        difference = _difference(np.asarray(value), _array(correct), case)
        if difference:
            return f"wrong: {difference}"
    return RIGHT


def _partition_and_compare(case: Any) -> str:
    """The case as a part of a model that also has something to compile: a product of matrices beside it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    import slipstream
    from slipstream.frontends import sandbox

    given, expected = case.data_sets[0]
    feeds = dict(zip([value.name for value in case.model.graph.input], given, strict=True))
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    bind_settings(model.graph, feeds, case.settings)
    square = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(square, "beside.weight"))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["beside.x", "beside.weight"], ["beside.y"]))
    for values, name in ((model.graph.input, "beside.x"), (model.graph.output, "beside.y")):
        values.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, square.shape))
    names = [value.name for value in model.graph.input]
    data = {name: square if name == "beside.x" else _array(feeds[name]) for name in names}
    with sandbox.in_this_process(), TemporaryDirectory() as folder:
        slipstream.compile(model, f"{folder}/model", shapes=_empty(feeds, model), input_data=data, threads=1)
        with slipstream.load(f"{folder}/model") as loaded:
            values = loaded(data)
    for value, correct in zip(values, expected, strict=False):
        if difference := _difference(np.asarray(value), _array(correct), case):
            return f"wrong: {difference}"
    return RIGHT


def _empty(feeds: Mapping[str, Any], model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs without elements: an extent of 0 would count as one that is not known."""
    arrays = {value.name: _array(feeds[value.name]) for value in model.graph.input if value.name in feeds}
    return {name: array.shape for name, array in arrays.items() if not array.size}


def settings_of(model: onnx.ModelProto) -> set[str]:
    """Names of the inputs that hold settings."""
    settings = set()
    for node in model.graph.node:
        positions = (1,) if node.op_type.startswith(_REDUCTIONS) else SETTINGS.get(node.op_type, ())
        settings.update(node.input[i] for i in positions if i < len(node.input) and node.input[i])
    return settings


def bind_settings(graph: onnx.GraphProto, feeds: Mapping[str, Any], settings: set[str]) -> None:
    """Make the inputs that hold settings constants."""
    for value in list(graph.input):
        if value.name in settings:
            graph.input.remove(value)
            graph.initializer.append(onnx.numpy_helper.from_array(_array(feeds[value.name]), value.name))


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _difference(value: Any, correct: Any, case: Any) -> str:
    if value.shape != correct.shape:
        return f"shape {value.shape} instead of {correct.shape}"
    if value.dtype != correct.dtype:
        return f"type {value.dtype} instead of {correct.dtype}"
    a, b = value.astype(np.float64), correct.astype(np.float64)
    if correct.dtype.kind in "iub" and np.array_equal(value, correct):
        return ""
    # Half precision has three digits.
    relative, absolute = (1e-2, 1e-3) if correct.dtype.itemsize == 2 else (case.rtol, max(case.atol, 1e-6))
    if np.allclose(a, b, rtol=relative, atol=absolute, equal_nan=True):
        return ""
    with np.errstate(invalid="ignore"):
        return f"largest difference {np.nanmax(np.abs(a - b)):.3g}"


def markdown(data: Mapping[str, Any]) -> str:
    cases = data["cases"]
    lines = [
        "| cases | number | compiled and right | refused | wrong, failed or crashed | right in a model that is cut |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in GROUPS:
        members = [case for case in cases.values() if case["group"] == name]
        if members:
            right, refused = (sum(c["outcome"].startswith(word) for c in members) for word in (RIGHT, "refused"))
            runs = right + sum(case.get("partitioned") == RIGHT for case in members)
            counts = [_share(right, members), refused, len(members) - right - refused, _share(runs, members)]
            lines.append(f"| {name} | {len(members)} | {' | '.join(map(str, counts))} |")
    lines += ["", "## What is not compiled", "", "| operator | cases | reason |", "| --- | --- | --- |"]
    reasons: dict[str, Counter[str]] = {}
    for case in cases.values():
        if case["outcome"] != RIGHT and case["group"] in (FLOAT, OTHER):
            reasons.setdefault(case["operator"], Counter())[_short(case["outcome"])] += 1
    for operator, counted in sorted(reasons.items()):
        total = sum(1 for case in cases.values() if case["operator"] == operator)
        said = "; ".join(reason for reason, _ in counted.most_common(2))
        lines.append(f"| {operator} | {sum(counted.values())} of {total} | {said} |")
    return "\n".join(lines)


def _share(count: int, of: Sequence[Any]) -> str:
    return f"{count} ({100 * count / len(of):.1f} %)"


def _short(text: str) -> str:
    text = re.sub(r"^(refused|failed): ", "", text).replace("|", "/").replace("\n", " ")
    text = re.sub(r"; (replace them in the model|fix all input shapes|cut the model off|export it with).*", "", text)
    return text if len(text) <= 110 else text[:107] + "..."


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    cases = [case for case in data["cases"].values() if case["group"] == FLOAT]
    right = sum(case["outcome"] == RIGHT for case in cases)
    runs = right + sum(case.get("partitioned") == RIGHT for case in cases)
    shares = {"share": right, "share that runs": runs}
    found = {name: f"{100 * count / max(1, len(cases)):.1f} %" for name, count in shares.items()}
    return {"cases": str(len(cases)), "right": str(right), **found}


if __name__ == "__main__":
    run(__name__)
