"""Programs that sessions of one model held as the best of an operator, and how long each of them really takes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.candidates import operators_of
from benchmarks.ended_session import EndedSession
from benchmarks.lanes import on_cores
from slipstream.graph.operators import Operator, weights_read
from slipstream.machine.target import Target
from slipstream.measure import MeasureConfig, reference_text
from slipstream.measure.choose import local_measurer
from slipstream.measure.timing.settling import Settling
from slipstream.measure.types import Candidate, Measurement
from slipstream.program.space import Program, Space, StockSpace

Identity = tuple[str, Any]
_AT_A_TIME = 15


@dataclass
class HeldPrograms:
    """`programs` are those of each operator, numbered in the order in which they are first met."""

    target: Target
    known: Mapping[str, Operator]
    own_sketches: bool
    programs: dict[str, dict[Identity, Program]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: str, runs: Mapping[Any, EndedSession], *, own_sketches: bool, target: Target) -> HeldPrograms:
        held = cls(target, {o.key: o for o in operators_of(model, target)}, own_sketches)
        for ended in runs.values():
            held.steps(ended)
        return held

    @property
    def operators(self) -> dict[str, dict[str, Any]]:
        return {
            key: {"name": self.known[key].name, "weight": self.known[key].weight, "default": _default(programs)}
            for key, programs in self.programs.items()
        }

    def steps(self, ended: EndedSession) -> list[tuple[float, str, int]]:
        """When a session began to hold which program (operator, number) as the best; at its end, what it compiled."""
        found: list[tuple[float, str, int]] = []
        best: dict[str, float] = {}
        for seconds, trial in sorted(_timed(ended), key=lambda pair: pair[0]):
            if trial.seconds < best.get(trial.operator, math.inf) and (program := ended.program(trial)) is not None:
                best[trial.operator] = trial.seconds
                found.append((round(seconds, 2), trial.operator, self.number(program)))
        end = round(ended.seconds, 2)
        return found + [(end, key, self.number(program)) for key, program in ended.winners.items() if program]

    def number(self, program: Program) -> int:
        """A new program of an operator gets the next number."""
        of_operator = self.programs.setdefault(program.operator, {})
        of_operator.setdefault(program.identity, program)
        return list(of_operator).index(program.identity)

    def time_again(self, samples: int, seed: int, lanes: Sequence[Sequence[int]] = ()) -> dict[str, list[float | None]]:
        """Seconds of every program, by operator: the median of so many samples, all of an operator's in turns.

        None for one that fails now. With `lanes`, sets of as many cores each, every lane times the programs of
        other operators at the same time.
        """
        ready = {key: self._measurements(key, programs.values()) for key, programs in self.programs.items()}
        lanes = lanes or [sorted(os.sched_getaffinity(0))]
        by_size = sorted(ready, key=lambda key: len(ready[key]), reverse=True)

        def of_lane(number: int) -> dict[str, list[float | None]]:
            with on_cores(lanes[number]):
                some = {key: ready[key] for key in by_size[number :: len(lanes)]}
                return self._time_in_turns(some, samples, np.random.default_rng([seed, number]))

        with ThreadPoolExecutor(len(lanes)) as pool:
            found = {key: seconds for some in pool.map(of_lane, range(len(lanes))) for key, seconds in some.items()}
        return {key: found[key] for key in self.programs}

    def _time_in_turns(
        self, ready: Mapping[str, Sequence[Measurement]], samples: int, rng: np.random.Generator
    ) -> dict[str, list[float | None]]:
        all_of_them = Settling(near=math.inf, most_finalists=10**6, least_rounds=samples, most_rounds=samples)
        references = {key: reference_text(self.known[key].func) for key in ready}
        config = MeasureConfig(model_weights=weights_read(self.known.values()))
        found: dict[str, list[float | None]] = {key: [None] * len(self.programs[key]) for key in ready}
        with local_measurer(self.target, references, config) as measurer:
            for key, some in ready.items():
                for number, seconds in _in_turns(measurer, some, rng, all_of_them).items():
                    found[key][number] = seconds
        return found

    def _measurements(self, key: str, programs: Iterable[Program]) -> list[Measurement]:
        operator = self.known[key]
        space = (Space if self.own_sketches else StockSpace)(key, operator.func, self.target)
        realized = [(number, space.realize(program)) for number, program in enumerate(programs)]
        # All count as equal here: how fast they are is what is measured.
        return [Measurement(Candidate(key, r.text, str(number)), samples=(1.0,)) for number, r in realized if r]


def held_after(ended: EndedSession, trials: int) -> dict[str, Program]:
    """The program that a session held as the best of each operator when so many had run."""
    best: dict[str, Any] = {}
    for _, trial in sorted(_timed(ended), key=lambda pair: pair[0])[:trials]:
        if trial.operator not in best or trial.seconds < best[trial.operator].seconds:
            best[trial.operator] = trial
    return {key: program for key, trial in best.items() if (program := ended.program(trial)) is not None}


def _default(programs: Mapping[Identity, Program]) -> int:
    """The number of the default program; the first if no run held it."""
    return next((number for number, program in enumerate(programs.values()) if program.origin == "default"), 0)


def _in_turns(
    measurer: Any, ready: Sequence[Measurement], rng: np.random.Generator, settling: Settling
) -> dict[int, float]:
    """Seconds by number. As many run in turns as there are processes for; one that works is among all of them, and what
    the machine's speed does to it from one turn to the next is taken off the others.
    """

    def settle(*some: Measurement) -> dict[int, float]:
        settled = measurer.settle(some, rng, settling)
        return {} if settled is None else {int(m.program.label): m.median for m in settled.finalists}

    for first in ready:
        if found := settle(first):
            break
    else:
        return {}
    (anchor,) = found
    others = [one for one in ready if one is not first]

    def add(times: Mapping[int, float]) -> None:
        scale = found[anchor] / times[anchor]
        found.update((number, scale * seconds) for number, seconds in times.items() if number not in found)

    for start in range(0, len(others), _AT_A_TIME):
        if anchor in (times := settle(first, *others[start : start + _AT_A_TIME])):
            add(times)
    # Of programs with the same code only one runs, any of them.
    for one in others:
        if int(one.program.label) not in found:
            if len(pair := settle(first, one)) > 1:
                add(pair)
            elif settle(one):
                found[int(one.program.label)] = found[anchor]
    return found


def _timed(ended: EndedSession) -> Iterable[tuple[float, Any]]:
    """Every trial that ran with the session's time at which it was done."""
    for slot in ended.history.slots.values():
        if slot.ended is not None and slot.trials:
            last = max(trial.done_at for trial in slot.trials)
            yield from ((slot.ended - (last - t.done_at), t) for t in slot.trials if math.isfinite(t.seconds))
