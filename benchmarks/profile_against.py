"""Where a compiled model loses to ONNX Runtime, operator by operator. Takes 20 s a model besides compiling it.

    python -m benchmarks.profile_against [--models resnet18,...] [--artifacts DIR] [--seconds 12]

Both run on the same inputs and threads, in turns. Ours notes when each compiled function begins and ends, ONNX
Runtime writes its own profile. Operators are matched by what they compute (`profile_kinds`). Noting costs both sides
some time: the table gives each model's latency without it too. `--artifacts DIR` takes tuned models from
DIR/MODEL instead of compiling untuned ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.cli.tvm_import import import_tvm_without_torch

import_tvm_without_torch()

import onnxruntime  # noqa: E402

import slipstream  # noqa: E402
from benchmarks.profile_kinds import our_work, ort_work  # noqa: E402
from benchmarks.profile_ours import ProfiledModel, typical  # noqa: E402
from slipstream.artifact.bench import interleave  # noqa: E402
from slipstream.artifact.loaded import load  # noqa: E402
from slipstream.frontends import load_model, random_inputs  # noqa: E402
from slipstream.frontends.onnx_run import session  # noqa: E402
from slipstream.graph.operator_names import describe  # noqa: E402
from slipstream.graph.prepare import prepare  # noqa: E402
from slipstream.graph.relax_walk import prim_funcs  # noqa: E402
from slipstream.target import resolve_target  # noqa: E402

MODELS = ("squeezenet1_1", "mobilenet_v2", "resnet18", "transformer_encoder")
_PREPACKED = "_prepacked"  # what TVM adds to a function whose weights it has stored anew
_RUNS_A_TURN = 5


def profile(model: str, artifact: Path, seconds: float) -> dict[str, Any]:
    """Both sides' latency and the typical time of each of their operators, in the order of the calls."""
    target = resolve_target("cpu")
    loaded = load_model(model)
    names = {str(g.name_hint): describe(func) for g, func in prim_funcs(prepare(loaded.module, target)[0]).items()}
    feeds = random_inputs(loaded.inputs, np.random.default_rng(0))
    compiled, plain = load(artifact, threads=target.threads), session(loaded.reference.path, threads=target.threads)
    whole = interleave(
        {"ours": lambda: compiled(feeds), "onnxruntime": lambda: plain.run(None, feeds)},
        seconds / 2,
        np.random.default_rng(0),
    )
    with tempfile.TemporaryDirectory() as scratch:
        ours, theirs = _profiles(
            ProfiledModel(artifact, feeds, target.threads),
            _profiling_session(loaded.reference.path, target.threads, Path(scratch)),
            feeds,
            seconds / 2,
        )
    operators = [(name.removesuffix(_PREPACKED), taken) for name, taken in ours]
    return {
        "latency": {side: float(np.median(np.concatenate(blocks))) for side, blocks in whole.items()},
        "ours": [{"name": names[key][0], "work": _pair(our_work(*names[key])), "s": s} for key, s in operators],
        "onnxruntime": [{"name": e["name"], "work": _pair(ort_work(e)), "s": s} for e, s in theirs],
    }


def _pair(work: Any) -> tuple[str, str]:
    return work.kind, work.what


def _profiling_session(path: Path, threads: int, scratch: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.enable_profiling = True
    options.profile_file_prefix = str(scratch / "profile")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _profiles(
    ours: ProfiledModel, theirs: onnxruntime.InferenceSession, feeds: dict[str, Any], seconds: float
) -> tuple[list[tuple[str, float]], list[tuple[dict[str, Any], float]]]:
    runs: list[list[tuple[str, float]]] = []
    turns, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds or turns < _RUNS_A_TURN:
        turns += 1
        time.sleep(0.02)
        runs += [ours.run() for _ in range(_RUNS_A_TURN + 1)][1:]
        time.sleep(0.02)
        for _ in range(_RUNS_A_TURN + 1):
            theirs.run(None, feeds)
    mine = typical([[taken for _, taken in run] for run in runs])
    events = json.loads(Path(theirs.end_profiling()).read_text())
    kernels = [e for e in events if e["cat"] == "Node" and e["name"].endswith("_kernel_time")]
    per_run = len(kernels) // (turns * (_RUNS_A_TURN + 1))
    noted = [kernels[start : start + per_run] for start in range(0, len(kernels), per_run)]
    warm = [run for number, run in enumerate(noted) if number % (_RUNS_A_TURN + 1)]
    other = typical([[event["dur"] / 1e6 for event in run] for run in warm])
    return (
        [(name, taken) for (name, _), taken in zip(runs[0], mine, strict=True)],
        list(zip(warm[0], other, strict=True)),
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    result = {}
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            artifact = options.artifacts / model if options.artifacts else Path(scratch, "untuned")
            if not options.artifacts:
                slipstream.compile(f"zoo:{model}", artifact)
            result[model] = profile(f"zoo:{model}", artifact, options.seconds)
    return {"models": result}


def markdown(data: dict[str, Any]) -> str:
    lines = ["# Where time goes, against ONNX Runtime", ""]
    for model, result in data["models"].items():
        ours, theirs = (1e3 * result["latency"][side] for side in ("ours", "onnxruntime"))
        sums = [1e3 * sum(row["s"] for row in result[side]) for side in ("ours", "onnxruntime")]
        lines += [f"## {model}", ""]
        lines += [f"Latency {ours:.2f} ms, ONNX Runtime {theirs:.2f} ms ({theirs / ours:.2f}x as fast); sum of the"]
        lines += [f"operators in the profiles {sums[0]:.2f} and {sums[1]:.2f} ms.", ""]
        lines += _table("kind", by_kind(result))
        lines += [""]
        lines += _table("matched operators, largest loss first", by_work(result)[:12])
        lines += [""]
    return "\n".join(lines)


def by_kind(result: dict[str, Any]) -> list[tuple[str, int, int, float, float]]:
    """(kind, calls of ours, of theirs, seconds of ours, of theirs), where we lose most first."""
    return _grouped(result, lambda work: work[0], lambda key: True)


def by_work(result: dict[str, Any]) -> list[tuple[str, int, int, float, float]]:
    """The same for operators that both sides have, by what they compute."""
    return _grouped(result, lambda work: f"{work[0]}: {work[1]}" if work[1] else "", bool)


def _grouped(result: dict[str, Any], key_of: Any, wanted: Any) -> list[tuple[str, int, int, float, float]]:
    calls: dict[str, Counter[str]] = {"ours": Counter(), "onnxruntime": Counter()}
    seconds: dict[str, dict[str, float]] = {"ours": {}, "onnxruntime": {}}
    for side in calls:
        for row in result[side]:
            key = key_of(row["work"])
            calls[side][key] += 1
            seconds[side][key] = seconds[side].get(key, 0.0) + row["s"]
    keys = [key for key in {**seconds["ours"], **seconds["onnxruntime"]} if wanted(key)]
    rows = [
        (key, calls["ours"][key], calls["onnxruntime"][key], seconds["ours"].get(key, 0.0), seconds["onnxruntime"].get(key, 0.0))
        for key in keys
    ]
    return sorted(rows, key=lambda row: row[4] - row[3])


def _table(title: str, rows: list[tuple[str, int, int, float, float]]) -> list[str]:
    lines = [f"| {title} | calls | ONNX Runtime's | µs | ONNX Runtime's µs | lost µs |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for key, mine, other, ours, theirs in rows:
        lines.append(f"| {key} | {mine} | {other} | {1e6 * ours:.0f} | {1e6 * theirs:.0f} | {1e6 * (ours - theirs):+.0f} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--artifacts", type=Path)
    parser.add_argument("--seconds", type=float, default=12)
    print(markdown(measure(parser.parse_args())))
