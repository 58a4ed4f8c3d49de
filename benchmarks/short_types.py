"""Models in 8 bits or in half precision against other runtimes and our own float32: what `latency --dtype` measures.

In int8 all runtimes are given the same file, made by ONNX Runtime's quantiser on inputs like those that are timed. In
half precision they are given the float32 model; OpenVINO computes it in that type where it has it, `torch.compile`
under autocast, ONNX Runtime has none on a CPU and stays in float32. OpenVINO has no 8-bit code for aarch64: a call of
ResNet-50 takes it 25 seconds there, so it is left out.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks import spread
from benchmarks.rivals.openvino_side import HINTS
from benchmarks.spread import table, with_quartiles

OURS, OURS_FLOAT = "slipstream", "slipstream float32"
COMPILED = "torch.compile"
SIDES = (OURS, OURS_FLOAT, "onnxruntime", "openvino", COMPILED)
MODELS = ("resnet50", "mobilenet_v2", "bert_base")
DTYPES = ("int8", "float16", "bfloat16")
_HEADINGS = {
    OURS_FLOAT: "our float32",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    COMPILED: "torch.compile, autocast",
}
# Root mean square, relative. On BERT in int8 ONNX Runtime differs from itself without its optimisations by 0.08.
_TOLERANCES = {"int8": 0.2, "float16": 0.02, "bfloat16": 0.05}
_SAMPLES = 4
_PAUSE = 0.02
_PATTERNS = ("back to back", "after 20 ms")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from benchmarks.rivals.rounds import compare
    from slipstream.artifact.request_pattern import RequestPattern
    from slipstream.machine.target import available_cores

    sides = sides_of(options.dtype, options.sides)
    for model in options.models or MODELS:
        jobs = prepared(model, options, sides, available_cores())
        if options.prepare:
            if COMPILED in sides:
                print(model, COMPILED, compare([COMPILED], jobs, processes=1, rounds=0, seed=0)[COMPILED], flush=True)
            continue
        cpu = platform.machine()
        result = {"dtype": options.dtype, "model": model, "architecture": cpu, "budget": options.budget}
        result["threads"] = available_cores()
        name = f"{model} {options.dtype} {cpu}"
        if options.cores:
            result["cores"] = options.cores
            name += f" on {options.cores} cores"
        for pattern, pause in zip(_PATTERNS, (0.0, _PAUSE), strict=True):
            found = compare(
                sides,
                jobs,
                processes=options.processes,
                rounds=options.rounds,
                seed=options.seed,
                pattern=RequestPattern(pause=pause),
            )
            result[pattern] = found
            yield name, result


def sides_of(dtype: str, asked: Iterable[str]) -> list[str]:
    """Those of `asked` that have the type; what we are in float32 is always compared."""
    lacking = {COMPILED} | ({"openvino"} if platform.machine() == "aarch64" else set()) if dtype == "int8" else set()
    return [side for side in SIDES if side == OURS_FLOAT or (side in asked and side not in lacking)]


def prepared(model: str, options: argparse.Namespace, sides: Iterable[str], threads: int) -> dict[str, dict[str, Any]]:
    """The job of each side; what does not exist yet is quantised and tuned."""
    from benchmarks.ended_session import tune_apart
    from benchmarks.rivals.models import model_files

    folder, dtype = options.work / model, options.dtype
    plain = model_files(model, folder / "files")
    files, given = plain, {"dtype": dtype}
    if dtype == "int8":
        files, given = model_files(str(quantised(plain, folder / "int8.onnx")), folder / "files-int8"), {}
    of_cores = f"-{options.cores}-cores" if options.cores else ""
    artifacts = {OURS: folder / f"tuned-{dtype}{of_cores}", OURS_FLOAT: folder / f"tuned{of_cores}"}
    for side, (source, own) in {OURS: (files["source"], given), OURS_FLOAT: (plain["source"], {})}.items():
        if side in sides:
            tune_apart(source, artifacts[side], budget=options.budget, seed=options.seed, **own)
    named = {name: str(path) for name, path in artifacts.items()}
    common = {"threads": threads, "artifacts": named, "rms_tolerance": _TOLERANCES[dtype], "dtype": dtype}
    return {
        side: {**(plain if side == OURS_FLOAT else files), **common, "work": str(folder / dtype / side)}
        for side in sides
    }


def quantised(files: Mapping[str, str], path: Path) -> Path:
    """The model in 8 bits; its ranges come from inputs like those it is timed on, in another order."""
    import numpy as np

    from slipstream.frontends.quantize import quantize

    if not path.exists():
        rng = np.random.default_rng(1)
        with np.load(files["feeds"]) as given:
            samples = {
                name: np.stack(
                    [rng.permuted(given[name].reshape(-1)).reshape(given[name].shape) for _ in range(_SAMPLES)]
                )
                for name in given.files
            }
        unfinished = path.with_suffix(".unfinished")
        quantize(files["source"], unfinished, samples, compare=False)
        unfinished.rename(path)
    return path


def markdown(data: Mapping[str, Any]) -> str:
    """A heading for each type; rows are models, called back to back and after a pause."""
    lines = []
    for dtype in DTYPES:
        results = [result for result in data.values() if result.get("dtype") == dtype]
        if not results:
            continue
        shown = [side for side in _HEADINGS if any(side in result.get(_PATTERNS[0], {}) for result in results)]
        rows = []
        for result in results:
            for pattern in _PATTERNS:
                if pattern in result:
                    sides = result[pattern]
                    cells = [_cell(sides, side, dtype) for side in shown]
                    ours = f"{1e3 * _median(sides[OURS]):.2f}"
                    rows.append([result["model"], result["architecture"], result["threads"], pattern, ours, *cells])
        lines += ["", f"## {dtype}", "", "How many times as fast as each Slipstream's tuned model is; above 1, it is"]
        lines += ["faster. In brackets the quartiles over rounds.", ""]
        lines += table(["model", "CPU", "threads", "called", "ms", *(_HEADINGS[side] for side in shown)], rows)
        found = [
            f"{result['model']} {result['architecture']} {side} {own['error']:.1e}"
            for result in results
            for side, own in result[_PATTERNS[0]].items()
            if own.get("error") is not None
        ]
        lines += ["", f"Relative errors (root mean square) against ONNX Runtime on the same file: {', '.join(found)}."]
    return "\n".join(lines) + "\n" if lines else ""


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    """Per type, model, side and pattern, and the geometric mean over models: how many times as fast we are."""
    found: dict[str, str] = {}
    means: dict[str, list[float]] = {}
    for result in data.values():
        if "dtype" not in result:
            continue
        where = result["architecture"] + (f" on {result['cores']} cores" if "cores" in result else "")
        for pattern in _PATTERNS:
            for side in _HEADINGS:
                if pattern in result and _ran(result[pattern], side):
                    ratio = median(_ratios(result[pattern], side))
                    found[f"{result['dtype']} {result['model']} {where} {side}, {pattern}"] = f"{ratio:.2f}"
                    means.setdefault(f"{result['dtype']} mean {where} {side}, {pattern}", []).append(ratio)
    return found | {name: f"{geometric_mean(ratios):.2f}" for name, ratios in means.items()}


def _ratios(sides: Mapping[str, Any], side: str) -> list[float]:
    return spread.ratios(sides[side]["blocks"], sides[OURS]["blocks"])


def _ran(sides: Mapping[str, Any], side: str) -> bool:
    return all(name in sides and "failed" not in sides[name] for name in (side, OURS))


def _cell(sides: Mapping[str, Any], side: str, dtype: str) -> str:
    """The ratio; with the type a side computed in, if that is not the one it was asked for."""
    if side not in sides:
        return ""
    if not _ran(sides, side):
        return str(sides[side].get("failed", "")).partition(":")[0]
    hint = sides[side].get("computed_in", {}).get("hint")
    other = f" in {hint}" if hint and dtype in HINTS and hint != HINTS[dtype] else ""
    return with_quartiles(_ratios(sides, side), 2) + other


def _median(found: Mapping[str, Any]) -> float:
    return median([value for blocks in found.get("blocks", []) for value in blocks if value is not None] or [0.0])
