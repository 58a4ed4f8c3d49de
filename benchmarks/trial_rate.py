"""How many trials per second: TVM's stock builder and runner, the same with its import patched, and ours.

    python -m benchmarks.trial_rate [--quick] [--count 64] [--output benchmarks/results/trial_rate.json]

The same random programs of a 3x3 and a 1x1 convolution of ResNet-18 and of a matmul of BERT go through
  stock    LocalBuilder + LocalRunner at their defaults but for a time limit that their imports fit into,
  patched  the same, with `inspect.stack` replaced in their processes so that `tensor_intrin` imports quickly,
  ours     LocalMeasurer,
operator by operator, in an order that rotates. Start-up counts for all three. TVM's pool needs `cloudpickle`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from slipstream.cli.tvm_import import import_tvm_without_torch

import_tvm_without_torch()

import tvm  # noqa: E402

from benchmarks.candidates import pick_operators, sample_programs  # noqa: E402
from slipstream.measure import Candidate, LocalMeasurer, reference_text  # noqa: E402
from slipstream.target import Target, resolve_target  # noqa: E402

_LIMIT_SECONDS = 600.0
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
    """LocalMeasurer, for all operators."""

    def __init__(self, target: Target, references: dict[str, str]) -> None:
        self._began = time.perf_counter()
        self.measurer = LocalMeasurer(target, references)
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


def idle_memory(measurer: LocalMeasurer, count: int = 4) -> float:
    """MB that `count` idle workers add, what they share counted once."""
    server = measurer._runner.server
    before = _family_bytes(server.pid)
    workers = [server.fork() for _ in range(count)]
    for worker in workers:
        worker.channel.send({"are you there": {}})
        worker.channel.receive(10.0)
    added = _family_bytes(server.pid) - before
    for worker in workers:
        server.discard(worker)
    return added / 1e6


def _family_bytes(pid: int) -> int:
    process, total = psutil.Process(pid), 0
    for member in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += member.memory_full_info().pss
    return total


def run(count: int, seed: int, systems: tuple[str, ...]) -> dict[str, Any]:
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
    load_before = os.getloadavg()
    running: dict[str, Stock | Ours] = {}
    measured: dict[str, dict[str, Any]] = {system: {} for system in systems}
    for turn, kind in enumerate(operators):
        for system in systems[turn % len(systems) :] + systems[: turn % len(systems)]:
            if system not in running:
                running[system] = make[system]()
            measured[system][kind] = running[system].measure(programs[kind])
            print(f"{kind:8} {system:8} {json.dumps(measured[system][kind]['seconds'])} s", flush=True)
    ours = running["ours"]
    assert isinstance(ours, Ours)
    result = {
        "machine": {"cpu": target.cpu, "cores": target.threads, "python": platform.python_version()},
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "count": count,
        "seed": seed,
        "operators": {kind: operator.name for kind, operator in operators.items()},
        "start_seconds": {system: running[system].start_seconds for system in systems},
        "first_result_seconds": ours.first_result_seconds,
        "import_tvm_seconds": ours.measurer._runner.server.import_seconds,
        "idle_workers_mb": idle_memory(ours.measurer),
        "measured": measured,
    }
    ours.measurer.close()
    return result


def rate(result: dict[str, Any], system: str) -> float:
    runs = result["measured"][system].values()
    seconds = sum(run["seconds"] for run in runs) + result["start_seconds"][system]
    return sum(float(run["trials"]) for run in runs) / seconds


def table(result: dict[str, Any]) -> str:
    systems = list(result["measured"])
    lines = ["trials/s   " + "".join(f"{system:>10}" for system in systems)]
    for kind in result["operators"]:
        rates = [result["measured"][s][kind]["trials"] / result["measured"][s][kind]["seconds"] for s in systems]
        lines.append(f"{kind:11}" + "".join(f"{value:10.2f}" for value in rates))
    lines.append(f"{'together':11}" + "".join(f"{rate(result, s):10.2f}" for s in systems) + "   (with start-up)")
    for kind in result["operators"]:
        best = [result["measured"][s][kind]["best"] for s in systems]
        texts = "".join(f"{1e3 * b:10.3f}" if b else f"{'-':>10}" for b in best)
        lines.append(f"best, ms: {kind:8}" + texts)
    if "patched" in systems:
        lines.append(f"ours / patched: {rate(result, 'ours') / rate(result, 'patched'):.2f}")
    parts = [result["measured"]["ours"][kind]["parts"] for kind in result["operators"]]
    split = ", ".join(f"{p} {1e3 * statistics.mean(x[p] for x in parts):.1f}" for p in _PARTS)
    overheads = [o for kind in result["operators"] for o in result["measured"]["ours"][kind]["overheads"]]
    before, after = (result["load_average"][when][0] for when in ("before", "after"))
    first, imports = result["first_result_seconds"], result["import_tvm_seconds"]
    lines += [
        f"a trial of ours, mean ms: {split} (load is part of build)",
        f"overhead, median ms: {1e3 * statistics.median(overheads):.1f}",
        f"first result after {first:.2f} s, {imports:.2f} s of it import tvm",
        f"4 idle workers add {result['idle_workers_mb']:.0f} MB",
        f"load average before and after: {before:.2f}, {after:.2f}",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=64, help="programs per operator")
    parser.add_argument("--quick", action="store_true", help="12 programs per operator")
    parser.add_argument("--without-stock", action="store_true", help="leave out the slowest contender")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/trial_rate.json"))
    options = parser.parse_args()
    systems = ("ours", "patched") if options.without_stock else ("ours", "patched", "stock")
    result = run(12 if options.quick else options.count, options.seed, systems)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1))
    print(table(result))


if __name__ == "__main__":
    main()
