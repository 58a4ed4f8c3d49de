"""Operators of a compiled model that are slower than ONNX Runtime's and OpenVINO's (half a minute a model).

All run on the same inputs and threads, in turns, and report what each operator took: our library by its own clock, the
others by their profilers. Operators are matched by computation (`benchmarks.rivals.computation`), since each runtime
names and fuses them differently. Latencies are those of the profiled runs.
`--sessions build/latency` takes the models that `benchmarks.latency` tuned, of `--dtype`; otherwise they are compiled
untuned. Models in 8 bits are quantised as there (`benchmarks/short_types.py`).
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import short_types
from benchmarks.runner import run
from benchmarks.spread import table

OURS = "ours"
THEIRS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
QUICK = {"models": ["squeezenet1_1"], "seconds": 6.0}
_RUNS_A_TURN = 5
_MOST_TURN_SECONDS = 1.0
_PAUSE_SECONDS = 0.02  # worker threads of the other side may still be spinning
_MOST_ROWS = 12
_MODELS = ("squeezenet1_1", "mobilenet_v2", "resnet18", "transformer_encoder")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="float32", choices=["float32", *short_types.DTYPES])
    parser.add_argument(
        "--models", nargs="+", help=f"[{' '.join(_MODELS)}; of a short type {' '.join(short_types.MODELS)}]"
    )
    parser.add_argument("--against", nargs="+", default=list(THEIRS), choices=list(THEIRS))
    parser.add_argument("--sessions", type=Path, help="take the tuned models in FOLDER/MODEL instead of compiling")
    parser.add_argument("--seconds", type=float, default=16.0, help="for each model")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    import slipstream
    from benchmarks.rivals.models import model_files
    from slipstream.machine.target import available_cores

    dtype = options.dtype
    for model in options.models or (_MODELS if dtype == "float32" else short_types.MODELS):
        folder = (options.sessions or options.work) / model
        files = model_files(model, folder / "files")
        if dtype == "int8":
            files = model_files(str(short_types.quantised(files, folder / "int8.onnx")), folder / "files-int8")
        of_type = "" if dtype == "float32" else f"-{dtype}"
        computed = "float32" if dtype == "int8" else dtype
        artifact = folder / f"{'tuned' if options.sessions else 'untuned'}{of_type}"
        if not artifact.exists():
            slipstream.compile(files["source"], artifact, dtype=computed)
        about = {"tuned": bool(options.sessions), "dtype": dtype, "threads": available_cores()}
        sides = opened(files, artifact, options, computed)
        name = model if dtype == "float32" else f"{model} {dtype} {platform.machine()}"
        yield name, {**about, **profile(sides, options.seconds)}


def opened(files: Mapping[str, str], artifact: Path, options: argparse.Namespace, computed: str) -> dict[str, Any]:
    """A profile of each side on the same inputs."""
    from benchmarks.rivals import openvino_side
    from benchmarks.rivals.profiles import OnnxRuntimeProfile, OpenVinoProfile, OurProfile
    from slipstream.machine.target import available_cores

    threads = available_cores()
    with np.load(files["feeds"]) as archive:
        feeds = dict(archive)
    names = artifact.with_name(f"{artifact.name}-names.json")
    sides: dict[str, Any] = {
        OURS: OurProfile(artifact, feeds, threads, lambda called: _names(called, files["source"], computed, names))
    }
    if "onnxruntime" in options.against:
        sides["onnxruntime"] = OnnxRuntimeProfile(Path(files["model"]), feeds, threads, options.work)
    if "openvino" in options.against:
        job = {"model": files["model"], "dtype": options.dtype}
        sides["openvino"] = OpenVinoProfile(openvino_side.compile_model(job, threads, PERF_COUNT=True), feeds)
    return sides


def _names(called: Sequence[str], source: str, dtype: str, file: Path) -> dict[str, Any]:
    """Of compiled functions their names for people and steps; kept in `file`, since preparing a model takes long."""
    from slipstream.frontends import load_model
    from slipstream.graph.describe.names import describe
    from slipstream.graph.prepare import prepare
    from slipstream.graph.relax_walk import prim_funcs
    from slipstream.machine.target import resolve_target

    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if not known.keys() >= set(called):
        prepared, _ = prepare(load_model(source).module, resolve_target("cpu", dtype=dtype))
        known = {str(g.name_hint): describe(func) for g, func in prim_funcs(prepared).items()}
        file.write_text(json.dumps(known))
    return known


def profile(sides: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Each side's latency and the typical time of each of its operators, in the order of the calls."""
    runs: dict[str, list[tuple[int, float]]] = {side: [] for side in sides}  # number of the run, seconds
    counts = dict.fromkeys(sides, 0)
    began = time.perf_counter()
    while not all(runs.values()) or time.perf_counter() - began < seconds:
        for side, opened in sides.items():
            time.sleep(_PAUSE_SECONDS)
            turn = time.perf_counter()
            # The first of each turn finds the caches filled by another side.
            for number in range(_RUNS_A_TURN + 1):
                start = time.perf_counter()
                opened.run()
                if number:
                    runs[side].append((counts[side], time.perf_counter() - start))
                counts[side] += 1
                if number and time.perf_counter() - turn > _MOST_TURN_SECONDS:
                    break
    found: dict[str, Any] = {"latency": {side: median(taken for _, taken in own) for side, own in runs.items()}}
    for side, opened in sides.items():
        every = opened.seconds()
        taken = typical([every[number] for number, _ in runs[side]])
        named = opened.operators()
        found[side] = [[name, *work, seconds] for (name, work), seconds in zip(named, taken, strict=True)]
    return found


def typical(runs: list[list[float]]) -> list[float]:
    """Each call's mean over runs without the fastest and slowest tenth; a clock of whole microseconds needs a mean."""
    ordered = np.sort(np.array(runs), axis=0)
    cut = len(ordered) // 10
    return [float(value) for value in ordered[cut : len(ordered) - cut].mean(axis=0)]


Row = tuple[str, dict[str, int], dict[str, float]]
"""What is computed, and by side the calls and the seconds in one run of the model."""


def by_kind(result: Mapping[str, Any]) -> list[Row]:
    """All operators by kind, the largest loss first. Where a side has attention as one operator, its parts are one."""
    from benchmarks.rivals.computation import ATTENTION, BATCH_MATMUL, SOFTMAX

    fused = any(row[1] == ATTENTION for side in sides_of(result) for row in result[side])
    parts = (BATCH_MATMUL, SOFTMAX) if fused else ()
    return _grouped(result, lambda kind, what: ATTENTION if kind in parts else kind)


def by_work(result: Mapping[str, Any]) -> list[Row]:
    """Those operators by what they compute that we and another side have as such, as often; largest loss first."""
    found = []
    for what, calls, seconds in _grouped(result, lambda kind, what: f"{kind}: {what}" if what else ""):
        # Where another side has joined some of them with others, its time is of something else.
        same = {side for side, count in calls.items() if count == calls[OURS]}
        if what and calls[OURS] and len(same) > 1:
            found.append((what, calls, {side: taken for side, taken in seconds.items() if side in same}))
    return sorted(found, key=_loss, reverse=True)


def sides_of(result: Mapping[str, Any]) -> list[str]:
    return [side for side in (OURS, *THEIRS) if side in result]


def _loss(row: Row) -> float:
    """Against the fastest of the others."""
    return row[2][OURS] - min(taken for side, taken in row[2].items() if side != OURS)


def _grouped(result: Mapping[str, Any], key_of: Callable[[str, str], str]) -> list[Row]:
    sides = sides_of(result)
    calls: dict[str, dict[str, int]] = {}
    seconds: dict[str, dict[str, float]] = {}
    for side in sides:
        for _, kind, what, taken in result[side]:
            key = key_of(kind, what)
            calls.setdefault(key, dict.fromkeys(sides, 0))[side] += 1
            seconds.setdefault(key, dict.fromkeys(sides, 0.0))[side] += taken
    return sorted(((key, n, seconds[key]) for key, n in calls.items()), key=_loss, reverse=True)


def markdown(data: Mapping[str, Any]) -> str:
    rivals = [side for side in THEIRS if any(side in result for result in data.values())]
    columns = ["model", "", "ms", *(THEIRS[side] for side in rivals)]
    columns += [f"{how} than {THEIRS[side]} in, µs" for side in rivals for how in ("slower", "faster")]
    rows = []
    for name, result in data.items():
        latencies = [f"{1e3 * result['latency'][side]:.2f}" if side in result else "" for side in (OURS, *rivals)]
        extremes = [_extreme(result, side, sign) if side in result else "" for side in rivals for sign in (1, -1)]
        rows.append([name, "tuned" if result["tuned"] else "untuned", *latencies, *extremes])
    lines = table(columns, rows)
    for name, result in data.items():
        sums = {side: 1e3 * sum(row[3] for row in result[side]) for side in sides_of(result)}
        others = ", ".join(f"{THEIRS[side]}'s {total:.2f} ms" for side, total in sums.items() if side != OURS)
        lines += ["", f"### {name}", "", f"Sum of the operators {sums[OURS]:.2f} ms, {others}.", ""]
        lines += [*_table("kind", by_kind(result), result), ""]
        lines += _table("the same work, largest loss first", by_work(result)[:_MOST_ROWS], result)
    return "\n".join(lines) + "\n"


def _extreme(result: Mapping[str, Any], side: str, sign: int) -> str:
    """The kind with the largest difference to a side: how much more (`sign` 1) or less (-1) it takes us."""
    kind, _, seconds = max(by_kind(result), key=lambda row: sign * (row[2][OURS] - row[2][side]))
    difference = seconds[OURS] - seconds[side]
    return f"{kind} {1e6 * difference:+.0f}" if sign * difference > 0 else "nothing"


def _table(title: str, rows: Sequence[Row], result: Mapping[str, Any]) -> list[str]:
    rivals = [side for side in sides_of(result) if side != OURS]
    columns = [title, "calls", *(THEIRS[side] for side in rivals), "µs", *(f"{THEIRS[side]}, µs" for side in rivals)]
    cells = []
    for what, calls, seconds in rows:
        taken = [f"{1e6 * seconds[side]:.0f}" if side in seconds else "" for side in rivals]
        lost = f"{1e6 * _loss((what, calls, seconds)):+.0f}"
        cells.append([what, *calls.values(), f"{1e6 * seconds[OURS]:.0f}", *taken, lost])
    return table([*columns, "lost to the faster, µs" if len(rivals) > 1 else "lost µs"], cells)


if __name__ == "__main__":
    run(__name__)
