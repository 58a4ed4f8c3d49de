"""How often the gain that was left exceeded the estimate, on recorded tuning curves (3 minutes).

DynaTune gives out slots on the recorded curves of all operators of a model, with the usual patience. At every fourth
slot the estimate is made from what was known then and compared with the gain from there to the end of the replay. The
margin is fitted: the estimate is multiplied by it. For each model it is fitted to the other models, on which the
largest of their 90 % quantiles is taken, and counted on this one; the curves of one model on a CPU and a GPU count as
one. A curve ends after 128 to 200 trials, so late gains of an operator that is still improving are missing from both.

`--session DIR` reads what a session that went on until nothing improved any more had estimated at each slot, instead.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
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
from slipstream.session.directory import SessionDirectory, open_store
from slipstream.session.history import Slot
from slipstream.session.settings import Settings
from slipstream.session.stored_history import StoredHistory

QUICK = {"seeds": 1, "every": 16}
RULES = (0.05, 0.02, 0.01)  # of --until-gain-below
_QUANTILE = 0.9
_LEAST = 5e-4  # an expected gain below this counts as this much: both are nothing


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=2, help="orders of the operators")
    parser.add_argument("--every", type=int, default=4, help="slots between two estimates")
    parser.add_argument("--session", type=Path, action="append", help="the folder of a session (repeatable)")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    if options.session:
        yield "sessions", [look_back(folder) for folder in options.session]
        return
    replays = []
    for device, folder in (("cpu", CURVES), ("gpu", GPU_CURVES)):
        for recording in read_all(folder):
            for seed in range(options.seeds):
                points = follow(recording, seed, options.every)
                about = {"model": recording.model, "recording": recording.name, "device": device, "seed": seed}
                replays.append({**about, "points": points})
    yield "curves", replays


def look_back(folder: Path) -> dict[str, Any]:
    """The points of a session, as `follow` has those of a replay."""
    directory = SessionDirectory.read(folder)
    with open_store(directory, read_only=True) as store:
        stored = StoredHistory.of(store, directory.session)
        estimates = {slot.slot: slot.stats.get("left") for slot in store.slots(directory.session)}
        noisy = [trial.noisy for trial in store.trials(session=directory.session)]
    assert stored.record is not None
    latencies = [(seconds, history.latency) for seconds, history in stored.history.by_slots()]
    ended = sorted((slot for slot in stored.history.slots.values() if slot.ended is not None), key=_end)
    points = [
        (round(seconds / latencies[-1][0], 4), round(left["expected"], 6), round(1 - latencies[-1][1] / latency, 6))
        for slot, (seconds, latency) in zip(ended, latencies, strict=True)
        if (left := estimates[slot.number]) is not None
    ]
    about = {"model": stored.record.model_name, "reason": stored.record.result.get("reason")}
    return {**about, "trials": len(noisy), "noisy": sum(noisy), "points": points}


def _end(slot: Slot) -> float:
    return slot.ended or 0.0


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


def exceeded(points: Sequence[Sequence[float]], margin: float) -> int:
    """How often more came than the expected gain times the margin."""
    return sum(came > margin * max(expected, _LEAST) for _, expected, came in points)


def summary(replays: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By model: the margin of the other models, how often it was exceeded, and where it would have stopped."""
    found = {}
    for model in sorted({one["model"] for one in replays}):
        own = [one for one in replays if one["model"] == model]
        margin = margin_of([one for one in replays if one["model"] != model])
        points = [point for one in own for point in one["points"]]
        stops = {rule: [s for one in own if (s := _stop(one["points"], margin, rule))] for rule in RULES}
        found[model] = {
            "margin": margin,
            "estimates": len(points),
            "exceeded": exceeded(points, margin),
            "stops": stops,
        }
    return found


def _stop(points: Sequence[tuple[float, float, float]], margin: float, rule: float) -> tuple[float, float] | None:
    """Where the rule would have ended it: the share of the time that had passed, and the gain that was missed."""
    return next(((time, came) for time, expected, came in points if margin * expected < rule), None)


def markdown(data: dict[str, Any]) -> str:
    found = summary(data["curves"])
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
    if sessions := data.get("sessions"):
        lines += ["", "## Sessions", "", "| session | estimates | exceeded |", "| --- | ---: | ---: |"]
        for one in sessions:
            count = exceeded(one["points"], MARGIN)
            lines.append(f"| {one['model']} | {len(one['points'])} | {count / len(one['points']):.0%} |")
    return "\n".join(lines) + "\n"


def numbers(data: dict[str, Any]) -> dict[str, str]:
    found = summary(data["curves"])
    estimates, over = (sum(one[name] for one in found.values()) for name in ("estimates", "exceeded"))
    figures = {
        "margin": f"{margin_of(data['curves']):.1f}",
        "estimates": f"{estimates:,}",
        "exceeded": _percent(over / estimates),
        "exceeded at worst": _percent(max(one["exceeded"] / one["estimates"] for one in found.values())),
        "replays": f"{len(data['curves'])}",
    }
    for one in data.get("sessions", ()):
        share = exceeded(one["points"], MARGIN) / len(one["points"])
        figures[f"session {one['model']}: exceeded"] = f"{100 * share:.0f} %"
        figures[f"session {one['model']}: noisy"] = f"{100 * one['noisy'] / one['trials']:.0f} %"
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
