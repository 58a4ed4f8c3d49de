"""Models as servers call them: after pauses, by several callers, on more cores (2 minutes a model and set of cores).

Every side is a process of its own, bound to the cores of the row and with as many threads; sides take turns block by
block (`slipstream.artifact.comparison`). A side that is missing is left out, and the reason recorded. Artifacts are
compiled untuned, or given: `--artifacts DIR` or `--artifacts DIR=MODEL.onnx` for one whose model is no longer where it
was compiled from. Measuring needs no compiler and no TVM. Also measured: the medians of many process starts, load time,
size and memory of each side, and with `--soak 10m` a process whose callers come and go. See docs/serving.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import run
from benchmarks.serving_table import markdown, numbers
from slipstream.artifact.bench import OURS, BaselineError
from slipstream.artifact.comparison import Comparison
from slipstream.artifact.directory import artifact_in
from slipstream.artifact.manifest import Manifest
from slipstream.artifact.request_pattern import RequestPattern
from slipstream.errors import InputError, SlipstreamError
from slipstream.processes.child import child_environment
from slipstream.session.budget import parse_duration

__all__ = ["arguments", "markdown", "measure", "numbers"]

MODELS = (
    "squeezenet1_1",
    "mobilenet_v2",
    "efficientnet_b0",
    "resnet18",
    "resnet50",
    "inception_v3",
    "transformer_encoder",
    "bert_base",
)
SIDES = ("onnxruntime", "openvino")
QUICK = {
    "models": ["tiny_cnn"],
    "cores": ["all"],
    "pauses": ["0", "20ms"],
    "callers": [1, 2],
    "seconds": 1.5,
    "starts": 3,
    "soak": "5s",
    "loads": 20,
}
_START_SECONDS = 0.5
_START_PATTERNS = (RequestPattern(), RequestPattern(pause=0.02))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--artifacts", nargs="+", metavar="DIR[=MODEL]", help="measure these instead of compiling")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="of the zoo, if no artifacts are given")
    parser.add_argument("--sides", nargs="*", default=list(SIDES), help="beside slipstream")
    parser.add_argument(
        "--cores", nargs="+", help="lists as taskset takes them, or all [1, 2, 4, ... of those allowed]"
    )
    parser.add_argument("--pauses", nargs="+", default=["0", "20ms", "100ms"])
    parser.add_argument("--callers", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=6.0, help="for each row: all sides together")
    parser.add_argument("--starts", type=int, default=20, help="process starts of ours")
    parser.add_argument("--soak", default="0", help="how long callers come and go, such as 10m")
    parser.add_argument("--loads", type=int, default=1000, help="loads and unloads in the soak")


@dataclass(frozen=True)
class Artifact:
    label: str
    directory: Path
    model: str | None  # where the model is, if not where the manifest says


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    patterns = [RequestPattern(_seconds(pause), None, n) for pause in options.pauses for n in options.callers]
    core_lists = [parse_cores(text) for text in options.cores] if options.cores else doubling_cores()
    for artifact in artifacts(options):
        for cores in core_lists:
            name = f"{artifact.label}, cores {cores_text(cores)}"
            found: dict[str, Any] = {"model": artifact.label, "cores": cores}
            for more in compare(artifact, cores, patterns, options):
                found |= more
                yield name, found
            if options.starts:
                yield name, found | {"starts": starts(artifact, cores, options)}
        if (seconds := _seconds(options.soak)) > 0:
            yield f"{artifact.label}, soak", {"model": artifact.label, "soak": soak(artifact, seconds, options)}


def artifacts(options: argparse.Namespace) -> Iterator[Artifact]:
    """Those given, or the zoo's models, compiled where that has not been done."""
    if options.artifacts:
        for text in options.artifacts:
            directory, _, model = text.partition("=")
            yield Artifact(label_of(Path(directory)), Path(directory), model or None)
        return
    for name in options.models:
        directory = options.work / name
        if not directory.exists():
            import slipstream

            slipstream.compile(f"zoo:{name}", directory)
        yield Artifact(label_of(directory), directory, None)


def label_of(directory: Path) -> str:
    manifest = Manifest.read(artifact_in(directory))
    return manifest.model if manifest.tuned else f"{manifest.model} untuned"


def compare(
    artifact: Artifact, cores: Sequence[int], patterns: Sequence[RequestPattern], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """What is known after each pattern. A side that fails in the middle is left out of the patterns that follow."""
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    facts: dict[str, Any] = {}
    callers = max(pattern.callers for pattern in patterns)
    rng = np.random.default_rng(options.seed)
    while len(rows) < len(patterns):
        with Comparison(
            artifact.directory, threads=len(cores), model=artifact.model, cores=cores, callers=callers
        ) as comparison:
            for side in options.sides:
                if side in skipped:
                    continue
                try:
                    comparison.add(side)
                except SlipstreamError as error:
                    skipped[side] = str(error)
            facts = facts or load_facts(comparison, artifact.directory)
            try:
                for pattern in patterns[len(rows) :]:
                    rows.append(asdict(comparison.measure(pattern, options.seconds, rng)))
                    yield {"rows": rows, "facts": facts, "skipped": skipped}
            except BaselineError as error:
                skipped[error.name] = str(error)


def load_facts(comparison: Comparison, directory: Path) -> dict[str, Any]:
    """Of each side at its first setting: load time, memory, threads, and bytes on disk of the model and the runtime."""
    found = {}
    for side, settings in comparison.facts.items():
        fixed = comparison.files.fixed if comparison.files else ""
        model = directory_bytes(artifact_in(directory)) if side == OURS else onnx_bytes(Path(fixed))
        found[side] = {
            **asdict(next(iter(settings.values()))),
            "model_bytes": model,
            "runtime_bytes": package_bytes(side),
        }
    return found


def directory_bytes(directory: Path) -> int:
    files = (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sum(path.stat().st_size for path in files)


def onnx_bytes(model: Path) -> int:
    """A file and those in which it keeps its weights."""
    return sum(path.stat().st_size for path in model.parent.glob(f"{model.name}*"))


def package_bytes(side: str) -> int:
    """Of the package that has to be installed to run a model."""
    spec = find_spec(side.partition(".")[0])
    locations = spec.submodule_search_locations if spec else None
    return sum(directory_bytes(Path(folder)) for folder in locations or ())


def starts(artifact: Artifact, cores: Sequence[int], options: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """Medians of ours and of the first other side, in processes that are started anew each time."""
    found = []
    for number in range(options.starts):
        rng = np.random.default_rng([options.seed, number])
        with Comparison(artifact.directory, threads=len(cores), model=artifact.model, cores=cores) as comparison:
            for side in options.sides[:1]:
                with suppress(SlipstreamError):  # why it is missing is in the rows
                    comparison.add(side)
            parts = [comparison.measure(pattern, _START_SECONDS, rng) for pattern in _START_PATTERNS]
        named = zip(("median", "paused"), parts, strict=True)
        found.append({what: {timing.name: timing.median for timing in part.timings} for what, part in named})
    return found


def soak(artifact: Artifact, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    job = {"directory": str(artifact.directory), "seconds": seconds, "callers": max(options.callers)}
    command = [
        sys.executable,
        "-m",
        "benchmarks.soak",
        json.dumps({**job, "loads": options.loads, "seed": options.seed}),
    ]
    done = subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"failed": f"ended with status {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def parse_cores(text: str) -> list[int]:
    """`0,2-4` → [0, 2, 3, 4]; `all` → those this process may use."""
    allowed = os.sched_getaffinity(0)
    if text == "all":
        return sorted(allowed)
    try:
        bounds = [[int(number) for number in part.split("-")] for part in text.split(",")]
        cores = sorted({core for low, *high in bounds for core in range(low, (high or [low])[0] + 1)})
    except ValueError:
        cores = []
    if not cores or not allowed.issuperset(cores):
        raise InputError(f"--cores {text}: write a list such as 0-3 or 0,2 of {cores_text(sorted(allowed))}, or all")
    return cores


def doubling_cores() -> list[list[int]]:
    """The first 1, 2, 4, ... cores this process may use, and all of them."""
    allowed = sorted(os.sched_getaffinity(0))
    counts = [2**power for power in range(len(allowed).bit_length()) if 2**power < len(allowed)]
    return [allowed[:count] for count in [*counts, len(allowed)]]


def cores_text(cores: Sequence[int]) -> str:
    """[0, 2, 3, 4] → `0,2-4`."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and runs[-1][-1] == core - 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _seconds(text: str) -> float:
    return 0.0 if text == "0" else parse_duration(text, "a time")


if __name__ == "__main__":
    run(__name__)
