"""The tables and figures of `benchmarks.gpu`, from its raw results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import geometric_mean
from typing import Any

from benchmarks.spread import table

# Name of a run -> what `benchmarks.gpu` measured.
Runs = Mapping[str, Mapping[str, Any]]


def markdown(runs: Runs) -> str:
    runs = dict(sorted(runs.items(), key=lambda item: _kind(item[1])))
    devices = sorted({f"{run['device']['name']}, {run['cores']} cores" for run in runs.values()})
    lines = [f"{'; '.join(devices)}.", "", *_table(_tuning(runs))]
    lines += ["", "### Sooner than the preset", ""]
    lines += [
        "Seconds from the start of each command. A run without a preset of its own is held against another's.",
        "",
        *_table(_sooner(runs)),
    ]
    lines += ["", "### Against PyTorch", ""]
    lines += [
        "Whole models, all as CUDA graphs: medians with 95 % intervals; above 1 the tuned model is faster.",
        "",
        *_table(_against(runs)),
    ]
    if any("kernels" in run for run in runs.values()):
        lines += ["", "### Kernels", "", "In one run of the model, as CUDA's profiler counts them.", ""]
        lines += _table(_kernels(runs))
        lines += ["", *_slowest(runs)]
    return "\n".join(lines) + "\n"


def numbers(runs: Runs) -> dict[str, str]:
    """Operators' times; where the preset's time goes, how far it gets; how much runs on the same model differ."""
    found: dict[str, str] = {}
    ends: dict[str, list[float]] = {}
    for name, run in runs.items():
        ends.setdefault(" ".join(_kind(run)), []).append(run["ours"]["latency"])
        operators = run["ours"]["operators"]
        often = Counter(operator["name"] for operator in operators)
        found |= {f"{name}: {o['name']}, µs": f"{1e6 * o['best']:.1f}" for o in operators if often[o["name"]] == 1}
        if "preset" in run:
            preset = run["preset"]
            found[f"{name}: preset's search, %"] = f"{100 * preset['split']['search'] / preset['wall_seconds']:.0f}"
            # Each has had its default program measured.
            searched = sum(operator["trials"] > 1 for operator in preset["operators"])
            found[f"{name}: operators the preset gets to"] = f"{searched} of {len(preset['operators'])}"
        for bench in _benches(run):
            found |= {f"{name} against {ratio['against']}": f"{ratio['median']:.2f}" for ratio in bench["ratios"]}
    for dtype in sorted({run["dtype"] for run in runs.values()}):
        one_input = [run for run in runs.values() if run["dtype"] == dtype and " batch " not in run["model"]]
        for other in (_OTHER, f"{_OTHER}:max-autotune"):
            ratios = [ratio for run in one_input for ratio in _ratios(run, other)]
            if len(ratios) > 1:
                found[f"{dtype} against {other}, mean"] = f"{geometric_mean(ratios):.2f}"
                found[f"{dtype} against {other}, range"] = f"{min(ratios):.2f} - {max(ratios):.2f}"
    found |= {f"{kind}: slowest end to fastest": f"{max(of) / min(of):.2f}" for kind, of in ends.items() if len(of) > 1}
    return found


def _benches(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [run[key] for key in ("bench", "bench_then") if key in run]


def _ratios(run: Mapping[str, Any], other: str) -> list[float]:
    """How many times as fast as another runtime the tuned model is, as it was first measured; nothing if it was not."""
    found = [ratio["median"] for bench in _benches(run) for ratio in bench["ratios"] if ratio["against"] == other]
    return found[:1]


def reached(curve: list[tuple[float, float]], latency: float) -> float | None:
    """When the sum over operators was first as low as this; None if it never was."""
    return next((at for at, value in curve if value <= latency), None)


def short_name(model: str) -> str:
    return model.removeprefix("zoo:")


def _kind(run: Mapping[str, Any]) -> tuple[str, str]:
    """What is tuned, and in which type."""
    return short_name(run["model"]), run["dtype"]


def _tuning(runs: Runs) -> Iterator[list[str]]:
    yield ["run", "seed", "s of budget", "trials", "a second", "failed", "sum of operators, ms", "whole model, ms"]
    for name, run in runs.items():
        ours = run["ours"]
        yield [
            name,
            str(run["seed"]),
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
        other = _run_with_preset(runs, name)
        if other is not None:
            preset = runs[other]["preset"]
            there = reached(preset["curve"], preset["latency"])
            ours = reached(run["ours"]["curve"], preset["latency"])
            yield [
                name,
                other,
                f"{preset['trials']}; {preset['trials_per_second']:.1f}",
                _ms(preset["latency"]),
                "nothing found" if there is None else f"{there:.0f}",
                "never" if ours is None else f"{ours:.0f}",
                "" if ours is None or there is None else f"{there / ours:.1f}",
            ]


def _run_with_preset(runs: Runs, name: str) -> str | None:
    """The run with a preset that this one is held against: itself, or else the latest on the same model and type."""
    if "preset" in runs[name]:
        return name
    found = [other for other, run in runs.items() if "preset" in run and _kind(run) == _kind(runs[name])]
    return found[-1] if found else None


def _against(runs: Runs) -> Iterator[list[str]]:
    yield ["run", "slipstream, ms", "against", "ms", "times as fast"]
    for name, run in runs.items():
        for bench in _benches(run):
            timings = {timing["name"]: _interval(timing, 1e3, 3) for timing in bench["timings"]}
            for ratio in bench["ratios"]:
                yield [name, timings["slipstream"], ratio["against"], timings[ratio["against"]], _interval(ratio, 1, 2)]
            for other in bench.get("failed", ()):
                yield [name, timings["slipstream"], other, "fails", ""]


def _kernels(runs: Runs) -> Iterator[list[str]]:
    yield ["run", "of", "kernels", "µs in kernels"]
    for name, run in runs.items():
        for side, kernels in run.get("kernels", {}).items():
            if kernels:
                yield [name, side, str(len(kernels)), f"{sum(seconds for _, seconds in kernels) * 1e6:.1f}"]


_MOST_ROWS = 15


def _slowest(runs: Runs) -> list[str]:
    """Kernel by kernel, of the run that is slowest in comparison with torch.compile."""
    ratios = {n: r for n, run in runs.items() if _OTHER in run.get("kernels", {}) for r in _ratios(run, _OTHER)}
    if not ratios:
        return []
    name = min(ratios, key=lambda run: ratios[run])
    lines = [f"The longest of {name}, which is {ratios[name]:.2f} times as fast as {_OTHER}:", ""]
    return [*lines, *_table(_longest(runs[name]["kernels"]))]


_OTHER = "torch.compile"
_NAME_LENGTH = 60


def _longest(kernels: Mapping[str, list[tuple[str, float]]]) -> Iterator[list[str]]:
    yield ["of", "kernel", "times", "µs"]
    for side in ("slipstream", _OTHER):
        times: dict[str, list[float]] = {}
        for kernel, seconds in kernels[side]:
            times.setdefault(kernel, []).append(seconds)
        for kernel, of in sorted(times.items(), key=lambda item: -sum(item[1]))[:_MOST_ROWS]:
            yield [side, f"`{kernel[:_NAME_LENGTH]}`", str(len(of)), f"{sum(of) * 1e6:.1f}"]


def _table(rows: Iterator[list[str]]) -> list[str]:
    return table(next(rows), rows)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _interval(row: Mapping[str, float], unit: float, digits: int) -> str:
    middle, low, high = (f"{unit * row[key]:.{digits}f}" for key in ("median", "low", "high"))
    return f"{middle} ({low} - {high})"
