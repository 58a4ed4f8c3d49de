"""The tables of `benchmarks.ablation`, from its raw results alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.spread import geometric_interval, table, with_range
from slipstream.statistics import median

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
WHOLE = "everything"
_NEAR = 1.05
_ENOUGH = 5  # runs for an interval


def at(run: Mapping[str, Any], seconds: float) -> float:
    """Sum of operators after `seconds` of a run."""
    return min((latency for when, latency, *_ in run["curve"] if when <= seconds), default=math.inf)


def time_to(run: Mapping[str, Any], latency: float) -> float:
    return min((when for when, reached, *_ in run["curve"] if reached <= latency), default=math.inf)


def after_as_many(run: Mapping[str, Any], whole: Mapping[str, Any]) -> float:
    """The ratio of both after equally many programs that ran, independent of the machine's speed; from times measured
    again afterwards, where there are any."""
    if "held" in run and "held" in whole and run is not whole:
        count = str(min(run["trials"], whole["trials"]))
        return float(run["held"][count] / whole["held"][count])
    most = min(max((point[2] for point in side["curve"]), default=0) for side in (run, whole))
    both = [min((point[1] for point in side["curve"] if point[2] <= most), default=math.inf) for side in (run, whole)]
    return _ratio(*both)


def slower(run: Mapping[str, Any], whole: Mapping[str, Any], axis: int) -> float:
    """How many times as much one takes as the whole method to the latency that both have reached after as many trials:
    seconds (axis 0) or programs that ran (axis 2). Not known where what they believed is not what counts.
    """
    if "held" in run and "held" in whole:
        return math.nan
    most = min(max(point[2] for point in side["curve"]) for side in (run, whole))
    curves = [[point for point in side["curve"] if point[2] <= most] for side in (run, whole)]
    if not all(curves):
        return math.nan
    goal = max(min(point[1] for point in curve) for curve in curves)
    own, full = (min(point[axis] for point in curve if point[1] <= goal) for curve in curves)
    return float(own / full) if full > 0 else math.nan


def pairs_of_all(data: Mapping[str, Any], on: str) -> dict[str, list[Pair]]:
    """Variant -> its runs with the whole method's, of all models of one target."""
    found: dict[str, list[Pair]] = {}
    for part, result in data.items():
        if target_of(part) == on:
            for name, pairs in pairs_of(result).items():
                if name != WHOLE and counted(pairs):
                    found.setdefault(name, []).extend(pairs)
    return found


def target_of(part: str) -> str:
    return part.partition(" on ")[2]


def models_on(data: Mapping[str, Any], on: str) -> list[str]:
    return [part for part in data if target_of(part) == on]


def worths(pairs: Iterable[Pair]) -> list[list[float]]:
    """For every pair: latency after as many trials, then trials and seconds to equal latency, each to the whole's."""
    measures = [[after_as_many(*pair) for pair in pairs], *([slower(*pair, axis) for pair in pairs] for axis in (2, 0))]
    return [[value for value in values if math.isfinite(value)] for values in measures]


def together(data: Mapping[str, Any]) -> list[str]:
    """The table over all models of each target, where several runs of a variant can be counted together."""
    lines: list[str] = []
    for on in sorted({target_of(part) for part in data}):
        rows = []
        for name, pairs in pairs_of_all(data, on).items():
            found = worths(pairs)
            if len(found[0]) >= _ENOUGH:
                known = (geometric_interval(values) if len(values) >= _ENOUGH else None for values in found)
                cells = ("{:.2f} ({:.2f} - {:.2f})".format(*one) if one else "" for one in known)
                rows.append([name, len(pairs), *cells])
        if rows:
            models = [part.partition(" on ")[0] for part in models_on(data, on)]
            where = f"on {on}" if on else "on a CPU"
            lines += ["", f"All models {where} ({', '.join(models)}); geometric means with 95 % intervals:", ""]
            columns = ["variant", "runs", "latency after as many trials", "trials to equal latency"]
            lines += table([*columns, "seconds to equal latency"], rows)
    return lines


def markdown(data: Mapping[str, Any]) -> str:
    """The tables, from raw results alone. A ratio is to the whole method's run with the same seed."""
    lines = together(data)
    for model, result in data.items():
        budget, half = result["budget"], result["budget"] / 2
        lines += ["", f"## {model}", "", f"{budget:g} s, {_seeds(len(result['runs'][WHOLE]))}:", ""]
        rows = []
        for name, pairs in pairs_of(result).items():
            cells = [_spread(ratios_at(pairs, seconds)) for seconds in (half, budget)]
            cells.append(_spread([after_as_many(*pair) for pair in pairs]) if counted(pairs) else "")
            cells.append(", ".join(str(run["trials"]) for run, _ in pairs))
            cells.append(", ".join(_there(run, at(full, budget)) for run, full in pairs))
            rows.append([name, *cells])
        columns = ["variant", f"latency after {half:g} s", f"after {budget:g} s", "after as many trials", "trials"]
        lines += table([*columns, "within 5 % after, s"], rows)
    return "\n".join(lines) + "\n"


def _there(run: Mapping[str, Any], goal: float) -> str:
    seconds = time_to(run, _NEAR * goal) if math.isfinite(goal) else math.inf
    return f"{seconds:.0f}" if math.isfinite(seconds) else "never"


def counted(pairs: Iterable[Pair]) -> bool:
    return all(len(point) > 2 for pair in pairs for side in pair for point in side["curve"])


def pairs_of(result: Mapping[str, Any]) -> dict[str, list[Pair]]:
    """Variant -> each of its runs with the whole method's of the same seed; not those still to come."""
    whole = result["runs"][WHOLE]
    found = {
        name: [(runs[seed], whole[seed]) for seed in whole if seed in runs] for name, runs in result["runs"].items()
    }
    return {name: pairs for name, pairs in found.items() if pairs}


def ratios_at(pairs: Iterable[Pair], seconds: float) -> list[float]:
    return [_ratio(at(run, seconds), at(full, seconds)) for run, full in pairs]


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def _ratio(latency: float, whole: float) -> float:
    """Infinite where an operator had no program yet, and nothing to compare with where the whole method had none."""
    return latency / whole if math.isfinite(whole) else math.nan


def _spread(ratios: list[float]) -> str:
    if not all(map(math.isfinite, ratios)):
        return "not all begun"
    return with_range(ratios)


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    """Ratios to the whole method's: at the end of the budget, medians over seeds; over all models, geometric means."""
    found = {}
    for model, result in data.items():
        for name, pairs in pairs_of(result).items():
            ratios = ratios_at(pairs, result["budget"])
            if all(map(math.isfinite, ratios)):
                found[f"{model}: {name}"] = f"{median(ratios):.2f}"
    for on in {target_of(part) for part in data}:
        for name, pairs in pairs_of_all(data, on).items():
            for what, values in zip(("latency", "trials", "seconds"), worths(pairs), strict=True):
                if len(values) >= _ENOUGH:
                    found[f"all{f' on {on}' if on else ''}: {name}, {what}"] = f"{geometric_interval(values)[0]:.2f}"
    return found
