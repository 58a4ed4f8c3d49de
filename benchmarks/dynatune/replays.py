"""Replays of policies on recorded curves, several seeds each.

A seed sets the order of the operators and the policy's random numbers: otherwise a policy without random numbers, such
as the sequential one, would have a single run, whose result depends on the order of the model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from benchmarks.dynatune.curves import CURVES, Recording
from benchmarks.dynatune.informed import Informed
from slipstream.belief.published import Prediction, PublishedBelief
from slipstream.plugins import Context, make
from slipstream.schedulers import Scheduler
from slipstream.schedulers.dynatune_paper import DynatunePaper
from slipstream.schedulers.eligible import highest, pick_adaptively
from slipstream.schedulers.gains import slot_seconds
from slipstream.schedulers.oracle import Oracle
from slipstream.schedulers.potential import speeds_of
from slipstream.schedulers.replay import RecordedCurve, Replay, replay
from slipstream.schedulers.types import OperatorState

# Name here -> how figures call it.
LABELS = {
    "dynatune": "DynaTune",
    "dynatune_no_potential": "DynaTune without potential",
    "dynatune_per_slot": "DynaTune by the slot",
    "dynatune_paper": "DynaTune as in the paper",
    "no_belief": "latency / (slots + 1)",
    "no_belief_per_second": "latency / (slots + 1), by the second",
    "steady_potential": "potential x latency / (slots + 1)",
    "epsilon_greedy": "epsilon-greedy",
    "softmax": "softmax",
    "gradient": "gradient (Ansor)",
    "dynamic_round_robin": "dynamic round-robin",
    "dynamic_random": "dynamic random",
    "linear": "linear",
    "round_robin": "round-robin",
    "random": "random",
    "sequential": "sequential",
    "oracle": "oracle",
}
# An operator is finished at the end of its curve only.
_PATIENCE = 10**9


class NoBelief:
    """Picks the highest latency / (slots + 1): gains are assumed to fall with the number of slots."""

    def __init__(self, *, per_second: bool = False) -> None:
        self._per_second = per_second

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        seconds = dict(zip((o.key for o in operators), slot_seconds(operators, operators), strict=True))

        def score(o: OperatorState) -> float:
            return o.latency / (o.slots + 1) / (seconds[o.key] if self._per_second else 1.0)

        return pick_adaptively(operators, lambda left: highest(left, score))


class SteadyPotential:
    """Picks the highest potential * latency / (slots + 1), of a potential that slots without a gain leave as it is:
    a quarter, and the logarithm of how many times as fast as the operator its fastest relative is.
    """

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        speeds = speeds_of(operators)

        def score(o: OperatorState) -> float:
            own, fastest = speeds[o.key], max((speeds.get(key, 0.0) for key in o.similar), default=0.0)
            potential = 0.25 + max(0.0, math.log2(fastest / own)) if own and fastest else 1.0
            return potential * o.latency / (o.slots + 1)

        return pick_adaptively(operators, lambda left: highest(left, score))


# Those that are no schedulers of a session.
_ONLY_HERE: Mapping[str, Callable[[], Scheduler]] = {
    "no_belief": NoBelief,
    "no_belief_per_second": partial(NoBelief, per_second=True),
    "steady_potential": SteadyPotential,
}
# Those that leave something out of another.
_VARIANTS: Mapping[str, tuple[str, Mapping[str, bool]]] = {
    "dynatune_no_potential": ("dynatune", {"heed_potential": False}),
    "dynatune_per_slot": ("dynatune", {"per_second": False}),
}


def policy(name: str, curves: Sequence[RecordedCurve], peak_flops: float, seed: int, slot_trials: int) -> Scheduler:
    """The policy of that name; all of `LABELS`, and whatever else `slipstream.plugins` has."""
    if name in _ONLY_HERE:
        return _ONLY_HERE[name]()
    if name == "oracle":
        return Oracle(slot_trials=slot_trials, curves=curves)
    name, options = _VARIANTS.get(name, (name, {}))
    context = Context(seed=seed, slot_trials=slot_trials, peak_flops=peak_flops)
    scheduler: Scheduler = make("scheduler", name, context, **options)
    return scheduler


@dataclass
class Study:
    """What all figures are made from, and where they go. Replays are kept: figures share most of them."""

    recordings: Sequence[Recording]
    figures: Path
    results: Path
    seeds: int = 5
    slot_trials: int = 8
    curves: Path = CURVES
    _kept: dict[tuple[str, str, int], Replay] = field(default_factory=dict, repr=False)
    _beliefs: dict[str, PublishedBelief] = field(default_factory=dict, repr=False)

    @property
    def models(self) -> dict[str, list[Recording]]:
        """Recordings by model."""
        found: dict[str, list[Recording]] = defaultdict(list)
        for recording in self.recordings:
            found[recording.model].append(recording)
        return dict(found)

    def runs(self, model: str, name: str) -> list[Replay]:
        """A policy's replays of a model: every recording of it with every seed."""
        return [run for recording in self.models[model] for run in self.runs_of(recording, name)]

    def informed(self, recording: Recording) -> list[Replay]:
        """Replays by a policy that is given the model's other recordings; none if there are none."""
        others = [other.replayable() for other in self.models[recording.model] if other is not recording]
        runs = []
        for seed in range(self.seeds) if others else ():
            curves = shuffled(recording.replayable(), seed)
            runs.append(replay(Informed(others, self.slot_trials), curves, self.slot_trials, patience_trials=_PATIENCE))
        return runs

    def runs_of(self, recording: Recording, name: str) -> list[Replay]:
        """A policy's replays of one recording."""
        return [self._run(recording, name, seed) for seed in range(self.seeds)]

    def _belief_of(self, recording: Recording) -> PublishedBelief:
        made = _Remembering(peak_flops=recording.peak_flops, slot_trials=self.slot_trials)
        return self._beliefs.setdefault(recording.name, made)

    def _run(self, recording: Recording, name: str, seed: int) -> Replay:
        at = (recording.name, name, seed)
        if at not in self._kept:
            curves = shuffled(recording.replayable(), seed)
            scheduler = policy(name, curves, recording.peak_flops, seed, self.slot_trials)
            if isinstance(scheduler, DynatunePaper):
                scheduler.belief = self._belief_of(recording)
            self._kept[at] = replay(scheduler, curves, self.slot_trials, patience_trials=_PATIENCE)
        return self._kept[at]


class _Remembering(PublishedBelief):
    """A forecast takes a tenth of a second: the seeds of a recording share them, and differ in the operators' order."""

    def __init__(self, *, peak_flops: float, slot_trials: int) -> None:
        super().__init__(peak_flops=peak_flops, slot_trials=slot_trials)
        self._made: dict[tuple[str, int], Prediction] = {}

    def predict(self, key: str, history: Sequence[float], flops: float) -> Prediction:
        if (key, len(history)) not in self._made:
            self._made[key, len(history)] = super().predict(key, history, flops)
        return self._made[key, len(history)]


def less_excess(excess: Mapping[str, Mapping[str, float]], ours: str, other: str = "gradient") -> float:
    """How many times the mean excess of `ours` that of `other` is, on average over models."""
    return geometric_mean([row[other] / row[ours] for row in excess.values()])


def shuffled(curves: Sequence[RecordedCurve], seed: int) -> list[RecordedCurve]:
    """The operators in the order that belongs to the seed."""
    return [curves[int(i)] for i in np.random.default_rng(seed).permutation(len(curves))]
