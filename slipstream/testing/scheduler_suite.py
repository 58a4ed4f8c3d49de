"""What every scheduler must do, as tests that anybody's scheduler can run.

    class TestMine(SchedulerSuite):
        def make(self, context):
            return MyScheduler(context)

pytest collects the subclass and runs all of it; nothing here needs pytest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slipstream.plugins import Context
from slipstream.schedulers.replay import RecordedCurve, replay
from slipstream.schedulers.types import OperatorState, Scheduler
from slipstream.testing.synthetic import model_curves

SLOT_TRIALS, PEAK_FLOPS = 8, 1e11


class SchedulerSuite:
    """Subclass it and say how the scheduler is made.

    `greedy`: it may leave an operator waiting for ever. `most_seconds`: of a core, for a pick among a thousand
    operators of which one has another history than at the last. `curves` are what the operators' histories are taken
    from, set before each `make`; only an oracle looks there.
    """

    greedy = False
    most_seconds = 0.05
    curves: Sequence[RecordedCurve] = ()

    def make(self, context: Context) -> Scheduler:
        """A new scheduler."""
        raise NotImplementedError

    def test_finished_operators_are_never_picked(self) -> None:
        curves = _curves(6)
        scheduler = self._make(curves)
        states = _states(curves, 2)
        for slot in range(24):
            # Out of step with the slot, or a policy that goes round in circles would seem to look.
            left = slot // 4
            mixed = [replace(state, finished=i not in (left, 5)) for i, state in enumerate(states)]
            picked = scheduler.pick(mixed, slot)
            assert picked in (states[left].key, states[5].key), f"slot {slot} went to {picked}, which is finished"

    def test_there_is_no_pick_when_all_are_finished(self) -> None:
        curves = _curves(3)
        scheduler = self._make(curves)
        assert scheduler.pick([], 0) is None
        assert scheduler.pick([replace(state, finished=True) for state in _states(curves, 2)], 5) is None

    def test_a_pick_depends_on_arguments_and_seed_alone(self) -> None:
        """A session that was interrupted goes on as it would have: a new scheduler picks what the old one does."""
        curves = _curves(5)
        old = self._make(curves, seed=3)
        rounds = [(_states(curves, slots), 5 * slots + i) for slots in (1, 3) for i in range(4)]
        picks = [old.pick(states, slot) for states, slot in rounds]
        for (states, slot), picked in reversed(list(zip(rounds, picks, strict=True))):
            assert self._make(curves, seed=3).pick(states, slot) == picked, f"another pick for slot {slot}"
            assert old.pick(states, slot) == picked, f"another pick for slot {slot} when asked again"

    def test_every_operator_gets_a_slot(self) -> None:
        if self.greedy:
            return
        curves = [replace(curve, weight=1, flops=10**8) for curve in _curves(5)]
        flat = [replace(curve, best=[0.01] * len(curve.best)) for curve in curves]
        run = replay(self._make(flat), flat, SLOT_TRIALS, patience_trials=10**6, max_slots=60)
        waiting = {curve.key for curve in curves} - set(run.choices)
        assert not waiting, f"after 60 slots {', '.join(sorted(waiting))} had none"

    def test_operators_without_a_valid_program_are_no_trouble(self) -> None:
        curves = _curves(4)
        for failing in ([0], [0, 1, 2, 3]):
            for trials in (0, 8):
                states = [
                    replace(state, history=[math.inf] * (trials + 1), slot_ends=(trials,)) if i in failing else state
                    for i, state in enumerate(_states(curves, 2))
                ]
                for slot in (0, 1, 50):
                    assert self._make(curves).pick(states, slot) in {state.key for state in states}

    def test_late_first_measurements_are_no_trouble(self) -> None:
        curves = [replace(c, best=[math.inf] * 5 + c.best[5:]) for c in _curves(3)]
        run = replay(self._make(curves), curves, SLOT_TRIALS, max_slots=12)
        assert len(run.choices) == 12
        assert not any(math.isnan(value) for value in run.latency)

    def test_the_unit_of_time_does_not_matter(self) -> None:
        """Seconds counted in other units, the peak in FLOP per such unit: same picks. 1024 keeps rounding the same."""
        unit = 1024.0
        curves = _curves(6)
        scaled = [replace(curve, best=[value * unit for value in curve.best]) for curve in curves]
        ours, theirs = self._make(curves, seed=1), self._make(scaled, seed=1, peak_flops=PEAK_FLOPS / unit)
        run, other = (replay(s, c, SLOT_TRIALS, max_slots=30) for s, c in ((ours, curves), (theirs, scaled)))
        assert run.choices == other.choices

    def test_a_thousand_operators_are_handled_quickly(self) -> None:
        curves = _curves(1000, trials=20)
        scheduler = self._make(curves)
        states = _states(curves[:100], 2) + _states(curves[100:], 0)
        scheduler.pick(states, 200)
        took = []
        for i in range(5):
            history = [*states[i].history, states[i].best * 0.9]
            states[i] = replace(states[i], history=history, slot_ends=(*states[i].slot_ends, len(history) - 1))
            began = time.process_time()
            scheduler.pick(states, 201 + i)
            took.append(time.process_time() - began)
        assert min(took) < self.most_seconds, f"a pick took {min(took) * 1000:.0f} ms"

    def _make(self, curves: Sequence[RecordedCurve], seed: int = 0, peak_flops: float = PEAK_FLOPS) -> Scheduler:
        self.curves = curves
        return self.make(Context(seed=seed, slot_trials=SLOT_TRIALS, peak_flops=peak_flops))


def _curves(operators: int, trials: int = 160) -> list[RecordedCurve]:
    return model_curves(np.random.default_rng(7), operators, trials, PEAK_FLOPS)


def _states(curves: Sequence[RecordedCurve], slots: int) -> list[OperatorState]:
    """The operators after so many slots each."""
    trials = slots * SLOT_TRIALS
    ends = tuple(range(SLOT_TRIALS, trials + 1, SLOT_TRIALS))
    return [OperatorState(c.key, c.weight, c.flops, c.best[: trials + 1], ends, c.seconds[trials]) for c in curves]
