"""Failures that are nobody's fault: devices that are away, and searches that crash the process they run in."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipstream.measure.types import Candidate, FailureKind
from slipstream.program.space import Realized
from slipstream.schedulers.types import OperatorState, SchedulerError
from slipstream.search.random import Random
from slipstream.search.types import Question
from slipstream.session.budget import Budget
from slipstream.session.events import Event, Snapshot
from slipstream.session.loop import Session
from slipstream.store import Store
from tests.session.synthetic import SyntheticMeasurer, begin_session, hashed, make_session, operators, play

OPERATORS = 6


class Away(SyntheticMeasurer):
    """SIMULATES devices that cannot be reached for the first `trials` of all, or of one operator."""

    def __init__(self, trials: int, operator: str | None = None) -> None:
        super().__init__(self._seconds_or_loss)
        self._left, self._operator = trials, operator

    def _seconds_or_loss(self, candidate: Candidate) -> float | FailureKind:
        if self._operator in (None, candidate.operator) and self._left > 0:
            self._left -= 1
            return FailureKind.DEVICE_LOST
        return max(1e-3, float(seconds)) if not isinstance(seconds := hashed(candidate), FailureKind) else 1e-2


def started(session: Session) -> bool:
    return all(math.isfinite(operator.start) for operator in session.history.operators.values())


def test_a_default_program_is_measured_again_later_in_the_session(tmp_path: Path) -> None:
    measurer = Away(1, next(iter(operators())))
    session, _ = play(tmp_path / "s", Budget(trials=64), measurer, search="random", slot_trials=4)
    assert started(session)
    assert math.isfinite(session.snapshot.latency)
    assert session.snapshot.failures == {"device lost": 1}
    lost = session.history.operators[next(iter(operators()))]
    assert lost.spans() or not session.operators[lost.key].space.sketches


def test_all_devices_away_for_a_while(tmp_path: Path) -> None:
    session, reason = play(tmp_path / "s", Budget(trials=40), Away(2 * OPERATORS), search="random", slot_trials=4)
    assert reason == "all trials are used"
    assert started(session)
    # What no device answered is not counted against the budget.
    assert session.history.trials == 40 + 2 * OPERATORS


def test_devices_that_stay_away_end_the_session_and_resuming_tries_again(tmp_path: Path) -> None:
    session, reason = play(tmp_path / "s", Budget(), Away(10**6), search="random", slot_trials=4, patience_trials=8)
    assert reason == "the devices are away"
    assert not any(operator.exhausted for operator in session.history.operators.values())
    resumed, reason = play(tmp_path / "s", Budget(), SyntheticMeasurer(lambda candidate: 1e-3))
    assert reason == "nothing improves any more"
    assert started(resumed)


def test_devices_away_in_the_middle_use_up_no_patience(tmp_path: Path) -> None:
    play(tmp_path / "s", Budget(trials=OPERATORS), Away(0), search="random", slot_trials=4, patience_trials=8)
    away, reason = play(tmp_path / "s", Budget(trials=100), Away(10**6))
    assert reason == "the devices are away"
    assert not any(operator.is_finished(8, None) for operator in away.history.operators.values() if operator.spans())
    resumed, _ = play(tmp_path / "s", Budget(trials=60), Away(0))
    assert resumed.history.latency < away.history.latency


class Crashing:
    """Proposes at random, but for the slots whose seeds it is told: there it raises an error, or ends as by a fault of
    TVM."""

    uses_score = False

    def __init__(self, crash: list[int] | None, log: Path, error: Exception | None = None) -> None:
        self.crash, self.log, self.error = crash, log, error

    def propose(self, question: Question) -> list[Realized]:
        with self.log.open("a") as file:
            file.write(f"{question.seed}\n")
        if self.crash is None or len(self.log.read_text().split()) in self.crash:
            if self.error is not None:
                raise self.error
            os.abort()
        return Random().propose(question)


@pytest.mark.parametrize(
    ("in_flight", "error", "lost"),
    [
        (1, None, "crashed (killed by SIGABRT)"),
        (3, None, "crashed (killed by SIGABRT)"),
        (1, ValueError("no sense\nat all"), "failed (ValueError: no sense)"),
    ],
)
def test_a_search_that_crashes_or_fails_costs_its_slot_and_no_more(
    in_flight: int, error: Exception | None, lost: str, tmp_path: Path
) -> None:
    said: list[str] = []

    def listen(event: Event, snapshot: Snapshot) -> None:
        if event.kind == "message":
            said.append(str(event.data["text"]))

    proposer = Crashing([2], tmp_path / "log", error)
    session, reason = play(
        tmp_path / "s", Budget(trials=30), proposer=proposer, watcher=listen, slot_trials=4, in_flight=in_flight
    )
    assert reason == "all trials are used"
    assert [f"({slot.lost})" in lost for slot in session.history.slots.values() if slot.lost] == [True]
    assert any(lost in text for text in said)
    seeds = (tmp_path / "log").read_text().split()
    assert len(set(seeds)) == len(seeds), "the seed that crashed was used again"
    resumed, _ = play(tmp_path / "s", Budget(trials=40), proposer=proposer)
    assert resumed.history.trials == 40
    with Store.open(tmp_path / "s") as store:
        assert all(slot.finished for slot in store.slots(store.sessions()[0].id))


def test_a_search_that_always_crashes_ends_the_session(tmp_path: Path) -> None:
    session, reason = play(tmp_path / "s", Budget(), proposer=Crashing(None, tmp_path / "log"), slot_trials=4)
    assert reason == "nothing improves any more"
    assert session.history.trials == session.history.default_trials == OPERATORS
    assert math.isfinite(session.history.latency)


class Wrong:
    """A search with a mistake of the ordinary kind."""

    uses_score = False

    def propose(self, question: Question) -> list[Realized]:
        raise ZeroDivisionError("a mistake in a search")


def test_an_exception_of_a_search_ends_the_session_as_itself(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="a mistake in a search") as raised:
        play(tmp_path / "s", Budget(trials=30), proposer=Wrong())
    assert any("in propose" in note for note in raised.value.__notes__)


class _Stubborn:
    """Picks the same operator whatever its state."""

    def __init__(self, key: str) -> None:
        self.key = key

    def pick(self, states: Sequence[OperatorState], slot: int) -> str | None:
        return self.key


@pytest.mark.parametrize("finished", [True, False])
def test_a_scheduler_that_picks_what_it_must_not_ends_the_session_in_one_line(finished: bool, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        identity = begin_session(store, most_trials=1, slot_trials=1)
        with store.own(identity):
            session = make_session(store, identity, SyntheticMeasurer(), Budget())
            session.scheduler = _Stubborn(next(iter(operators())) if finished else "conv")
            expected = "which is finished" if finished else "'conv', which is no operator of this session"
            with pytest.raises(SchedulerError, match=expected):
                session.run()
