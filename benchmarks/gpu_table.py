"""The tables of `benchmarks.gpu`, from its raw results alone.

python -m benchmarks.gpu_table     # results/gpu_*.json -> results/gpu.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu import reached

RESULTS = Path(__file__).parent / "results"

# Name of a run -> what `benchmarks.gpu` wrote.
Runs = Mapping[str, Mapping[str, Any]]


def read(folder: Path = RESULTS) -> Runs:
    """The runs of a folder, by name; other benchmarks of GPUs keep their results there, too."""
    found = {path.stem.removeprefix("gpu_"): json.loads(path.read_text()) for path in sorted(folder.glob("gpu_*.json"))}
    return {name: run for name, run in found.items() if "ours" in run}


def markdown(runs: Runs) -> str:
    lines = ["# Tuning on a GPU", "", *_table(_tuning(runs))]
    lines += ["", "## Sooner than the preset `metaschedule`", ""]
    lines += [
        "Seconds from the start of each command. A run without a preset of its own is held against another's.",
        "",
    ]
    lines += _table(_sooner(runs))
    lines += ["", "## Whole model against PyTorch, all as CUDA graphs", ""]
    lines += ["Medians with 95 % intervals; above 1 the tuned model is faster.", "", *_table(_against(runs))]
    return "\n".join(lines) + "\n"


def _tuning(runs: Runs) -> Iterator[list[str]]:
    yield ["run", "dtype", "seed", "s of budget", "trials", "a second", "failed", "sum of operators, ms", "model, ms"]
    for name, run in runs.items():
        ours = run["ours"]
        yield [
            name,
            _kind(run)[1],
            str(run.get("seed", 0)),
            f"{ours['wall_seconds']:.0f} of {ours['budget_seconds']:.0f}",
            str(ours["trials"]),
            f"{ours['trials_per_second']:.1f}",
            ", ".join(f"{count} {kind}" for kind, count in ours["failures"].items()) or "0",
            f"{_ms(ours['start_latency'])} → {_ms(ours['latency'])}",
            _ms(ours["end_to_end"]),
        ]


def _sooner(runs: Runs) -> Iterator[list[str]]:
    yield ["run", "preset of", "its trials; a second", "it ends at, ms", "is there after", "ours after", "times sooner"]
    for name, run in runs.items():
        for other, theirs in _presets(runs, name):
            preset = theirs["preset"]
            there = reached(preset["curve"], preset["latency"])
            ours = reached(run["ours"]["curve"], preset["latency"])
            assert there is not None
            yield [
                name,
                other,
                f"{preset['trials']}; {preset['trials_per_second']:.1f}",
                _ms(preset["latency"]),
                f"{there:.0f}",
                "never" if ours is None else f"{ours:.0f}",
                "" if ours is None else f"{there / ours:.1f}",
            ]


def _presets(runs: Runs, name: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The preset's run beside this one, or else those on the same model in the same type."""
    if "preset" in runs[name]:
        return [(name, runs[name])]
    return [(other, run) for other, run in runs.items() if "preset" in run and _kind(run) == _kind(runs[name])]


def _kind(run: Mapping[str, Any]) -> tuple[str, str]:
    """What is tuned, and in which type; the oldest results do not name it."""
    return run["model"], run.get("dtype", "float32")


def _against(runs: Runs) -> Iterator[list[str]]:
    yield ["run", "slipstream, ms", "against", "ms", "times as fast"]
    for name, run in runs.items():
        for bench in (run[key] for key in ("bench", "bench_then") if key in run):
            timings = {timing["name"]: timing for timing in bench["timings"]}
            for ratio in bench["ratios"]:
                ours, theirs = (_interval(timings[side], 1e3, 3) for side in ("slipstream", ratio["against"]))
                yield [name, ours, ratio["against"], theirs, _interval(ratio, 1, 2)]


def _table(rows: Iterator[list[str]]) -> list[str]:
    head, *body = rows
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _interval(row: Mapping[str, float], unit: float, digits: int) -> str:
    middle, low, high = (f"{unit * row[key]:.{digits}f}" for key in ("median", "low", "high"))
    return f"{middle} ({low} - {high})"


if __name__ == "__main__":
    (RESULTS / "gpu.md").write_text(markdown(read()))
    print((RESULTS / "gpu.md").read_text(), end="")
