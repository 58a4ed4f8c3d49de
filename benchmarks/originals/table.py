"""The tables of `benchmarks.originals`, from its raw results alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

from benchmarks import spread
from benchmarks.originals.operators import same_work
from benchmarks.originals.settings import ANSOR, BY_SKETCH, CODE_DIFFUSION
from benchmarks.spread import table, with_quartiles

METASCHEDULE, OURS = "metaschedule", "ours"
NAMES = {
    ANSOR: "Ansor",
    CODE_DIFFUSION: "code diffusion (by operator)",
    BY_SKETCH: "code diffusion (by sketch)",
    METASCHEDULE: "MetaSchedule's algorithm",
    OURS: "ours",
}
WITHIN = (0.01, 0.05, 0.10, 0.25)
_ABOUT = """\
Seconds to a built model within so much of the lowest final latency of all sides, of the artifact's sides without
importing the model; medians over seeds. A tuning's curve is the sum of its operators' best times; it is scaled by one
factor, so that its end is the latency of the built model, and the seconds that building took are added."""


def by_side(result: Mapping[str, Any]) -> dict[str, list[str]]:
    """Side -> its runs that led to a model, one a seed."""
    ran = [name for name in result["runs"] if "failed" not in result["compared"][name]]
    found = {side: [name for name in ran if result["runs"][name]["side"] == side] for side in NAMES}
    return {side: names for side, names in found.items() if names}


def final_latency(result: Mapping[str, Any], name: str) -> float:
    """Seconds of a call of the model at the end, the median of all rounds of all processes."""
    return median([v for blocks in result["compared"][name]["blocks"] for v in blocks if v is not None])


def best_known(result: Mapping[str, Any]) -> float:
    return min(final_latency(result, name) for names in by_side(result).values() for name in names)


def scaled_curve(result: Mapping[str, Any], name: str) -> list[tuple[float, float]]:
    """(seconds to a built model, its latency) after each round in which all operators had been measured; the end last.

    The sum of operators is scaled so that its last value is the latency of the model at the end.
    """
    run, final = result["runs"][name], final_latency(result, name)
    curve = [(seconds, estimate) for seconds, estimate, _ in run["curve"] if estimate is not None]
    rounds = [(seconds + run["finishing"], final * (estimate / curve[-1][1])) for seconds, estimate in curve]
    return [*rounds, (_wall(run), final)]


def time_to(result: Mapping[str, Any], name: str, latency: float) -> float:
    """Seconds of a run until a built model is at most so slow; infinite if it never had one."""
    return min((seconds for seconds, estimate in scaled_curve(result, name) if estimate <= latency), default=math.inf)


def time_of_side(result: Mapping[str, Any], side: str, latency: float) -> float:
    """The median over seeds."""
    return median([time_to(result, name, latency) for name in by_side(result)[side]])


def times_sooner(result: Mapping[str, Any], side: str, than: str = ANSOR) -> float:
    """How much sooner a side is at the final latency of another one (within one per cent) than that side itself.

    Zero if it never is.
    """
    finals = {name: final_latency(result, name) for name in by_side(result)[than]}
    itself = median([time_to(result, name, spread.AS_FAST * final) for name, final in finals.items()])
    return itself / time_of_side(result, side, spread.AS_FAST * median(finals.values()))


def sooner_by_the_authors(result: Mapping[str, Any], side: str) -> float:
    """The artifact's own measure, the median over seeds: at the lowest sum of operators that Ansor had, by that sum."""
    found = []
    for ansor, theirs in zip(by_side(result)[ANSOR], by_side(result)[side], strict=False):
        curves = [result["runs"][name]["curve"] for name in (ansor, theirs)]
        reference, own = ([(s, estimate) for s, estimate, _ in curve if estimate is not None] for curve in curves)
        if reference:
            goal = min(estimate for _, estimate in reference)
            at = [min((s for s, e in curve if e <= goal), default=math.inf) for curve in (reference, own)]
            found.append(at[0] / at[1])
    return median(found) if found else 0.0


def markdown(data: Mapping[str, Any]) -> str:
    lines = [_ABOUT, ""]
    columns = ["model", "side", "seeds", *(f"within {within:.0%}".replace("%", " %") for within in WITHIN)]
    lines += table(columns, [row for model, result in data.items() for row in _times(model, result)])
    compared = {model: result for model, result in data.items() if ANSOR in by_side(result)}
    if compared:
        lines += ["", "### Sooner than Ansor", "", "Times sooner at Ansor's final latency, within 1 %; 0 is never.", ""]
        columns = ["model", "side", "times sooner", "by the sum of operators, as the artifact's authors count"]
        lines += table(columns, [row for model, result in compared.items() for row in _sooner(model, result)])
    for model, result in data.items():
        lines += ["", f"### {model}", "", *table(*_details(result))]
        if rows := list(_operators(result)):
            lines += ["", "Operators of equal FLOPs, by each side's own measurements, all calls of one run:", ""]
            lines += table(["operators of ours", "MFLOPs", "calls", "ours, ms", "its best, ms", "ours to its"], rows)
    return "\n".join(lines) + "\n"


def _times(model: str, result: Mapping[str, Any]) -> Iterator[list[object]]:
    best = best_known(result)
    for side, names in by_side(result).items():
        cells = [_seconds(result, names, time_of_side(result, side, (1 + within) * best)) for within in WITHIN]
        yield [model, NAMES[side], len(names), *cells]


def _seconds(result: Mapping[str, Any], names: Sequence[str], seconds: float) -> str:
    if math.isfinite(seconds):
        return f"{seconds:.0f}"
    return f"not by {median([_wall(result['runs'][name]) for name in names]):.0f}"


def _wall(run: Mapping[str, Any]) -> float:
    return float(run["tuning_seconds"] + run["finishing"])


def _sooner(model: str, result: Mapping[str, Any]) -> Iterator[list[object]]:
    for side in by_side(result):
        if side != ANSOR:
            authors = f"{sooner_by_the_authors(result, side):.2f}" if side in (CODE_DIFFUSION, BY_SKETCH) else ""
            yield [model, NAMES[side], f"{times_sooner(result, side):.2f}", authors]


def _details(result: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """A row for every run and ONNX Runtime."""
    columns = ["run", "trials", "operators measured", "tuning, s", "building, s", "ended at the limit"]
    columns += ["sum of operators, ms", "model, ms", "latency to ONNX Runtime", "largest error"]
    rows: list[list[object]] = []
    for name, found in result["compared"].items():
        run = result["runs"].get(name)
        cells: list[object] = [""] * 6
        if run:
            tasks, ends = run.get("tasks", []), [estimate for _, estimate, _ in run["curve"] if estimate is not None]
            measured = f"{sum(task['seconds'] is not None for task in tasks)} of {len(tasks)}" if tasks else ""
            cells = [run["trials"], measured, f"{run['tuning_seconds']:.0f}", f"{run['finishing']:.0f}"]
            cells += ["yes" if run.get("censored") else "", f"{1e3 * ends[-1]:.2f}" if ends else ""]
        if "failed" in found:
            rows.append([name, *cells, found["failed"], "", ""])
            continue
        ratios = spread.ratios(found["blocks"], result["compared"]["onnxruntime"]["blocks"])
        rows.append(
            [
                name,
                *cells,
                f"{1e3 * final_latency(result, name):.2f}",
                with_quartiles(ratios, 2),
                f"{found['error']:.0e}",
            ]
        )
    return columns, rows


def _operators(result: Mapping[str, Any]) -> Iterator[list[object]]:
    """A row for every piece of work that both sides have, the largest loss first."""
    for work in same_work(result, OURS):
        times = [f"{1e3 * seconds:.3f}" for seconds in (work.ours, work.theirs)]
        yield [
            ", ".join(work.names),
            f"{work.flops / 1e6:.1f}",
            f"{work.calls:g}",
            *times,
            f"{work.ours / work.theirs:.2f}",
        ]


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    """How much sooner each side is than Ansor, and ours than each of the artifact's: models and geometric means; last
    latencies, medians over seeds, in ms and relative to ONNX Runtime's.
    """
    pairs = {f"{side} sooner than {ANSOR}": (side, ANSOR) for side in (CODE_DIFFUSION, BY_SKETCH, METASCHEDULE, OURS)}
    pairs |= {f"{OURS} sooner than {than}": (OURS, than) for than in (CODE_DIFFUSION, BY_SKETCH, METASCHEDULE)}
    found = {"models": str(len(data))}
    for key, (side, than) in pairs.items():
        both = {model: result for model, result in data.items() if {side, than} <= by_side(result).keys()}
        times = {model: times_sooner(result, side, than) for model, result in both.items()}
        found |= {f"{model}: {key}": f"{value:.1f}" for model, value in times.items()}
        if times:
            found[key] = f"{geometric_mean(times.values()):.1f}" if min(times.values()) > 0 else "never"
    for model, result in data.items():
        onnxruntime = final_latency(result, "onnxruntime")
        for side, names in by_side(result).items():
            last = median(final_latency(result, name) for name in names)
            found |= {f"{model}: {side}, ms": f"{1e3 * last:.0f}", f"{model}: {side}": f"{last / onnxruntime:.2f}"}
    return found
