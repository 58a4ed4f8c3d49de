"""How many trials a second, by cores: TVM's stock builder and runner, and ours (10 minutes).

The same random programs of a 3x3 and a 1x1 convolution of ResNet-18 and of a matmul of BERT go through
  stock    LocalBuilder + LocalRunner at their defaults but for a time limit that their imports fit into,
  patched  the same, with `inspect.stack` replaced in their processes so that `tensor_intrin` imports quickly,
  ours     the CPU measurer,
operator by operator, in an order that rotates. Start-up counts for all three. TVM's pool needs `cloudpickle`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from slipstream.tvm_bridge.imports import import_tvm_without_torch

import_tvm_without_torch()

import tvm  # noqa: E402

from benchmarks.candidates import pick_operators, sample_programs  # noqa: E402
from benchmarks.runner import run  # noqa: E402
from benchmarks.spread import table  # noqa: E402
from slipstream.machine.target import Target, available_cores, resolve_target  # noqa: E402
from slipstream.measure import Candidate, cpu_measurer, reference_text  # noqa: E402

_LIMIT_SECONDS = 600.0
QUICK = {"count": 3, "without_stock": True, "cores": [available_cores()]}
NAMES = {"ours": "ours", "patched": "TVM, import patched", "stock": "TVM, a higher time limit only"}
_AIM = 5  # times the patched path
_PARTS = ("build", "load", "allocate", "run", "overhead")


def patch_import() -> None:
    """Runs in each stock process before its work. Self-contained: it travels there as pickled code."""
    import inspect
    import sys

    def stack(context: int = 1) -> list[inspect.FrameInfo]:
        frame, frames = sys._getframe(1), []
        while frame is not None:
            code = frame.f_code
            frames.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
            frame = frame.f_back  # type: ignore[assignment]
        return frames

    inspect.stack = stack


class Stock:
    """TVM's LocalBuilder and LocalRunner."""

    def __init__(self, target: Target, initializer: Callable[[], None] | None) -> None:
        from tvm.s_tir.meta_schedule.builder import LocalBuilder
        from tvm.s_tir.meta_schedule.runner import LocalRunner

        began = time.perf_counter()
        self._target = target
        self._builder = LocalBuilder(timeout_sec=_LIMIT_SECONDS, initializer=initializer)
        self._runner = LocalRunner(timeout_sec=_LIMIT_SECONDS, initializer=initializer)
        self.start_seconds = time.perf_counter() - began

    def measure(self, programs: list[Candidate]) -> dict[str, Any]:
        from tvm.s_tir.meta_schedule.arg_info import ArgInfo
        from tvm.s_tir.meta_schedule.builder import BuilderInput
        from tvm.s_tir.meta_schedule.runner import RunnerInput

        began = time.perf_counter()
        mods = [tvm.ir.load_json(program.module) for program in programs]
        built = self._builder.build([BuilderInput(mod, self._target.tvm) for mod in mods])
        build_seconds = time.perf_counter() - began
        good = [(mod, result) for mod, result in zip(mods, built, strict=True) if result.error_msg is None]
        inputs = [
            RunnerInput(result.artifact_path, "cpu", ArgInfo.from_entry_func(mod, remove_preproc=True))
            for mod, result in good
        ]
        results = [future.result() for future in self._runner.run(inputs)]
        seconds = time.perf_counter() - began
        for _, result in good:
            shutil.rmtree(os.path.dirname(result.artifact_path), ignore_errors=True)
        medians = [float(np.median([float(s) for s in r.run_secs])) for r in results if r.error_msg is None]
        errors = [str(r.error_msg) for r in [*built, *results] if r.error_msg is not None]
        return {
            "seconds": seconds,
            "build_seconds": build_seconds,
            "trials": len(programs),
            "measured": len(medians),
            "best": min(medians, default=None),
            "first_error": errors[0][-500:] if errors else None,
        }


class Ours:
    """the CPU measurer, for all operators."""

    def __init__(self, target: Target, references: dict[str, str]) -> None:
        self._began = time.perf_counter()
        self.measurer = cpu_measurer(target, references)
        self.start_seconds = time.perf_counter() - self._began
        self.first_result_seconds: float | None = None

    def measure(self, programs: list[Candidate]) -> dict[str, Any]:
        began = time.perf_counter()
        results = []
        for measurement in self.measurer.measure(programs):
            results.append(measurement)
            if self.first_result_seconds is None:
                self.first_result_seconds = time.perf_counter() - self._began
        seconds = time.perf_counter() - began
        good = [m for m in results if m.failure is None]
        ran = [m for m in good if not m.duplicate]
        return {
            "seconds": seconds,
            "trials": len(programs),
            "measured": len(good),
            "best": min((m.median for m in good), default=None),
            "noisy": sum(m.noisy for m in good),
            "first_error": next((str(m.failure) for m in results if m.failure), None),
            "parts": {part: statistics.mean(getattr(m, f"{part}_seconds") for m in ran) for part in _PARTS},
            "overheads": [m.overhead_seconds for m in ran],
        }


def arguments(parser: argparse.ArgumentParser) -> None:
    most = available_cores()
    parser.add_argument("--count", type=int, default=64, help="programs of each operator")
    parser.add_argument("--cores", type=int, nargs="+", default=[n for n in (1, 2, 4, 8, 16, 32, 64) if n <= most])
    parser.add_argument("--without-stock", action="store_true", help="leave out the slowest contender")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """All contenders on the most cores, ours on fewer too."""
    every = sorted(os.sched_getaffinity(0))
    for cores in options.cores:
        systems = ("ours", "patched") if options.without_stock else ("ours", "patched", "stock")
        os.sched_setaffinity(0, every[:cores])
        try:
            found = compare(options.count, options.seed, systems if cores == max(options.cores) else ("ours",))
        finally:
            os.sched_setaffinity(0, every)
        yield str(cores), found


def compare(count: int, seed: int, systems: tuple[str, ...]) -> dict[str, Any]:
    target = resolve_target()
    operators = pick_operators(target)
    rng = np.random.default_rng(seed)
    programs = {kind: sample_programs(operator, target, count, rng) for kind, operator in operators.items()}
    references = {operator.key: reference_text(operator.func) for operator in operators.values()}
    make: dict[str, Callable[[], Stock | Ours]] = {
        "ours": lambda: Ours(target, references),
        "patched": lambda: Stock(target, patch_import),
        "stock": lambda: Stock(target, None),
    }
    running: dict[str, Stock | Ours] = {}
    measured: dict[str, dict[str, Any]] = {system: {} for system in systems}
    for turn, kind in enumerate(operators):
        for system in systems[turn % len(systems) :] + systems[: turn % len(systems)]:
            if system not in running:
                running[system] = make[system]()
            measured[system][kind] = running[system].measure(programs[kind])
    ours = running["ours"]
    assert isinstance(ours, Ours)
    result = {
        "cpu": target.cpu,
        "count": count,
        "operators": {kind: operator.name for kind, operator in operators.items()},
        "start_seconds": {system: running[system].start_seconds for system in systems},
        "first_result_seconds": ours.first_result_seconds,
        "import_tvm_seconds": ours.measurer.server.facts["import_seconds"],
        "measured": measured,
    }
    ours.measurer.close()
    return result


def rate(result: Mapping[str, Any], system: str) -> float:
    """Trials a second of all operators together, start-up included."""
    runs = result["measured"][system].values()
    seconds = sum(run["seconds"] for run in runs) + result["start_seconds"][system]
    return sum(float(run["trials"]) for run in runs) / seconds


def markdown(data: Mapping[str, Any]) -> str:
    ordered = {cores: data[cores] for cores in sorted(data, key=int)}
    kinds = list(next(iter(ordered.values()))["operators"])
    rates = []
    for cores, result in ordered.items():
        for system, measured in result["measured"].items():
            each = [run["trials"] / run["seconds"] for run in measured.values()]
            rates.append([NAMES[system], cores, *(f"{value:.2f}" for value in [*each, rate(result, system)])])
    splits = [
        ["all three", cores, *(f"{value:.1f}" for value in [*split_of(result).values(), overhead(result)])]
        for cores, result in ordered.items()
    ]
    lines = table(["trials a second", "cores", *kinds, "together, with start-up"], rates)
    lines += ["", *table(["a trial of ours, mean ms", "cores", *_PARTS, "overhead, median"], splits), ""]
    return "\n".join(
        [*lines, "Loading is part of building, which is CPU time; as many builds run at a time as cores.", ""]
    )


def split_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds of a mean trial of ours, by part."""
    parts = [result["measured"]["ours"][kind]["parts"] for kind in result["operators"]]
    return {part: 1e3 * statistics.mean(one[part] for one in parts) for part in _PARTS}


def overhead(result: Mapping[str, Any]) -> float:
    """Milliseconds of the median trial's overhead."""
    return 1e3 * statistics.median(
        o for kind in result["operators"] for o in result["measured"]["ours"][kind]["overheads"]
    )


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    most = max(data, key=int)
    result = data[most]
    found = {f"trials/s on {cores}": f"{rate(one, 'ours'):.1f}" for cores, one in data.items()}
    found |= {f"times {name}": f"{rate(result, 'ours') / rate(result, name):.1f}" for name in result["measured"]}
    found |= {f"{part} ms": f"{value:.0f}" for part, value in split_of(result).items()}
    found["first result, s"] = f"{result['first_result_seconds']:.2f}"
    found["import tvm, s"] = f"{result['import_tvm_seconds']:.2f}"
    if "patched" in result["measured"]:
        reached = rate(result, "ours") >= _AIM * rate(result, "patched")
        found["aim"] = "reached" if reached else "**not reached**"
    return found | {"cores": most}


if __name__ == "__main__":
    run(__name__)
