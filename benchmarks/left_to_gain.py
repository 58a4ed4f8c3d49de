"""How often the gain that was left exceeded the estimate, on recorded tuning curves (3 minutes).

DynaTune gives out slots on the recorded curves of all operators of a model, with the usual patience. At every fourth
slot the estimate is made from what was known then and compared with the gain from there to the end of the replay. The
margin is fitted: the estimate is multiplied by it. For each model it is fitted to the other models, on which the
largest of their 90 % quantiles is taken, and counted on this one; the curves of one model on a CPU and a GPU count as
one. A curve ends after 128 trials, so late gains of an operator that is still improving are missing from both.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.dynatune.curves import CURVES, GPU_CURVES, Recording, read_all
from benchmarks.dynatune.replays import policy, shuffled
from benchmarks.runner import run
from slipstream.belief import Belief
from slipstream.schedulers import Scheduler
from slipstream.schedulers.left_to_gain import MARGIN, LeftToGainEstimate
from slipstream.schedulers.replay import replay
from slipstream.schedulers.types import OperatorState
from slipstream.session.settings import Settings

QUICK = {"seeds": 1, "every": 16}
RULES = (0.05, 0.02, 0.01)  # of --until-gain-below
_QUANTILE = 0.9
_LEAST = 5e-4  # an expected gain below this counts as this much: both are nothing


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=2, help="orders of the operators")
    parser.add_argument("--every", type=int, default=4, help="slots between two estimates")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    replays = []
    for device, folder in (("cpu", CURVES), ("gpu", GPU_CURVES)):
        for recording in read_all(folder):
            for seed in range(options.seeds):
                points = follow(recording, seed, options.every)
                about = {"model": recording.model, "recording": recording.name, "device": device, "seed": seed}
                replays.append({**about, "points": points})
    return {"margin": MARGIN, "replays": replays}


class _Watched:
    """A scheduler that keeps what it was shown."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.seen: list[list[OperatorState]] = []

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        self.seen.append(list(operators))
        return self._scheduler.pick(operators, slot)


def follow(recording: Recording, seed: int, every: int) -> list[tuple[float, float, float]]:
    """At some slots: the share of the time that had passed, the gain expected then, and the one that came."""
    settings = Settings()
    curves = shuffled(recording.replayable(), seed)
    watched = _Watched(policy("dynatune", curves, recording.peak_flops, seed, settings.slot_trials))
    course = replay(watched, curves, settings.slot_trials, patience_trials=settings.patience_trials)
    belief = Belief(peak_flops=recording.peak_flops, slot_trials=settings.slot_trials, seed=seed)
    left = LeftToGainEstimate(belief, settings.patience_trials)
    points = []
    for slot in range(0, len(course.choices), every):
        latency = course.latency[slot]
        if math.isfinite(latency) and (found := left.estimate(watched.seen[slot])) is not None:
            came = 1 - course.latency[-1] / latency
            points.append((round(course.times[slot] / course.times[-1], 4), round(found.expected, 6), round(came, 6)))
    return points


def margin_of(replays: Sequence[dict[str, Any]]) -> float:
    """The largest, over models and devices, of the 90 % quantiles of the gain that came over the expected one."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for one in replays:
        found = ratios.setdefault((one["model"], one["device"]), [])
        found += [came / max(expected, _LEAST) for _, expected, came in one["points"]]
    return max(float(np.quantile(found, _QUANTILE)) for found in ratios.values())


def summary(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By model: the margin of the other models, how often it was exceeded, and where it would have stopped."""
    found = {}
    for model in sorted({one["model"] for one in data["replays"]}):
        own = [one for one in data["replays"] if one["model"] == model]
        margin = margin_of([one for one in data["replays"] if one["model"] != model])
        points = [point for one in own for point in one["points"]]
        stops = {rule: [s for one in own if (s := _stop(one["points"], margin, rule))] for rule in RULES}
        found[model] = {
            "margin": margin,
            "estimates": len(points),
            "exceeded": sum(came > margin * max(expected, _LEAST) for _, expected, came in points),
            "stops": stops,
        }
    return found


def _stop(points: Sequence[tuple[float, float, float]], margin: float, rule: float) -> tuple[float, float] | None:
    """Where the rule would have ended it: the share of the time that had passed, and the gain that was missed."""
    return next(((time, came) for time, expected, came in points if margin * expected < rule), None)


def markdown(data: dict[str, Any]) -> str:
    found = summary(data)
    lines = [
        "| model, left out when fitting | margin | estimates | exceeded |"
        + "".join(f" {rule:.0%}: time used | missed, at most |" for rule in RULES),
        "| --- |" + " ---: |" * (3 + 2 * len(RULES)),
    ]
    for model, one in found.items():
        cells = [f"{one['margin']:.2f}", f"{one['estimates']}", f"{one['exceeded'] / one['estimates']:.1%}"]
        for rule in RULES:
            stops = one["stops"][rule]
            cells += [f"{np.mean([t for t, _ in stops]):.0%}", f"{max(c for _, c in stops):.1%}"] if stops else ["", ""]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def numbers(data: dict[str, Any]) -> dict[str, str]:
    found = summary(data)
    estimates, exceeded = (sum(one[name] for one in found.values()) for name in ("estimates", "exceeded"))
    figures = {
        "margin": f"{margin_of(data['replays']):.1f}",
        "estimates": f"{estimates:,}",
        "exceeded": _percent(exceeded / estimates),
        "exceeded at worst": _percent(max(one["exceeded"] / one["estimates"] for one in found.values())),
        "replays": f"{len(data['replays'])}",
    }
    for rule in RULES:
        stops = [stop for one in found.values() for stop in one["stops"][rule]]
        figures[f"below {rule:.0%}: time used"] = f"{100 * np.mean([t for t, _ in stops]):.0f} %"
        figures[f"below {rule:.0%}: missed at most"] = _percent(max(c for _, c in stops))
        figures[f"below {rule:.0%}: missed more"] = f"{sum(c > rule for _, c in stops)}"
    return figures


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    run(__name__)
