"""The loop on a measurer that simulates: budgets, repeatability, going on after an end, and who wins."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from slipstream.graph.operators import Operator
from slipstream.machine.target import resolve_target
from slipstream.measure import cpu_measurer, reference_text
from slipstream.measure.types import Candidate, FailureKind, Measurement
from slipstream.program.space import Program, Realized, Space
from slipstream.search.types import Question
from slipstream.session.budget import Budget
from slipstream.session.events import Event, Snapshot
from slipstream.session.loop import Session
from slipstream.session.operator_trials import OperatorTrials
from slipstream.session.records import DEFAULTS
from slipstream.session.status import snapshot_of
from slipstream.session.winners import best_programs
from slipstream.store import Store
from tests.gpu import operators as gpu_operators
from tests.gpu import some_gpu
from tests.session import killed
from tests.session.synthetic import (
    TRIAL_SECONDS,
    Scored,
    SyntheticMeasurer,
    begin_session,
    contents,
    hashed,
    make_session,
    operators,
    play,
    space,
)

QUICK: dict[str, Any] = {"slot_trials": 4, "patience_trials": 16}
EVOLUTIONARY = {"search": "evolutionary", "population": 8, "generations": 1, "deterministic": True}
OPERATORS = 6
TRIALS = 14  # of the session that is killed


def is_default(candidate: Candidate) -> bool:
    realized = space(candidate.operator).realize(space(candidate.operator).default)
    return realized is not None and realized.text == candidate.module


# Same seed, same answers


@pytest.mark.parametrize(
    ("settings", "trials"),
    [
        ({}, 24),
        ({"search": "random", "scheduler": "random"}, 24),
        pytest.param({**EVOLUTIONARY, "scheduler": "gradient", "cost": "metaschedule"}, 9, marks=pytest.mark.slow),
    ],
)
def test_the_same_seed_gives_the_same_answers(settings: dict[str, Any], trials: int, tmp_path: Path) -> None:
    for name in ("a", "b"):
        play(tmp_path / name, Budget(trials=trials), **QUICK, **settings)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_another_seed_gives_other_answers(tmp_path: Path) -> None:
    for seed in (1, 2):
        play(tmp_path / str(seed), Budget(trials=20), seed=seed, search="random", **QUICK)
    assert contents(tmp_path / "1")["slots"] != contents(tmp_path / "2")["slots"]


# Going on


@pytest.mark.parametrize("settings", [{}, {"search": "random", "scheduler": "gradient"}])
def test_a_session_stopped_anywhere_goes_on_as_if_nothing_had_happened(settings: Any, tmp_path: Path) -> None:
    """Ended orderly after each number of trials in turn, also in the middle of the defaults and of a slot."""
    play(tmp_path / "whole", Budget(trials=20), **QUICK, **settings)
    measured: list[Candidate] = []
    for trials in (0, 1, 5, 7, 8, 13, 20):
        measurer = SyntheticMeasurer()
        stopping = Budget(trials=20)
        play(tmp_path / "parts", stopping, measurer, stop=_after(measurer, trials - len(measured)), **QUICK, **settings)
        measured += measurer.measured
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert len(measured) == 20
    assert max(Counter(candidate.label for candidate in measured).values()) == 1


def _after(measurer: SyntheticMeasurer, count: int) -> Any:
    return lambda: len(measurer.measured) >= count


def test_a_session_whose_time_is_spent_before_it_knows_the_defaults(tmp_path: Path) -> None:
    """Each time it is asked to go on with the spent budget it does nothing; with a new one it does not start over."""
    for _ in range(3):
        assert play(tmp_path / "s", Budget(trials=3), **QUICK)[1] == "all trials are used"
        assert len(contents(tmp_path / "s")["trials"]) == 3
    session, _ = play(tmp_path / "s", Budget(trials=20), **QUICK)
    defaults = [slot for slot in contents(tmp_path / "s")["slots"] if slot[3] == DEFAULTS]
    assert sorted(slot[1] for slot in defaults) == sorted(operators())
    assert math.isfinite(session.snapshot.latency)


def test_a_session_killed_again_and_again_ends_up_like_one_that_was_not(tmp_path: Path) -> None:
    store, log, state = (tmp_path / name for name in ("killed", "log", "state"))
    command = [sys.executable, "-m", "tests.session.killed", *map(str, (store, log, state, TRIALS, "incremental"))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    kills, status = map(int, ended.stdout.split())
    assert (status, ended.stderr) == (0, "")
    assert kills >= 4
    session, _ = play(tmp_path / "whole", Budget(trials=TRIALS), proposer=Scored(), **killed.SETTINGS)
    assert contents(store) == contents(tmp_path / "whole")
    places = [trial[:2] for trial in contents(store)["trials"]]
    assert len(set(places)) == len(places) == TRIALS
    # The trial in hand is lost with the process, no other.
    assert TRIALS <= len(log.read_text().split()) <= TRIALS + kills
    assert _learned(state.read_bytes()) == _learned(session.cost.state())


def _learned(state: bytes) -> dict[str, Any]:
    arrays = np.load(io.BytesIO(state))
    return {name: arrays[name].tolist() for name in arrays.files}


def test_the_store_tells_the_same_story_as_the_session(tmp_path: Path) -> None:
    session, _ = play(tmp_path / "s", Budget(trials=20), **QUICK)
    with Store.open(tmp_path / "s", read_only=True) as store:
        told = snapshot_of(store, session.session)
    seen = session.snapshot
    assert (told.trials, told.slots, told.failures) == (seen.trials, seen.slots, seen.failures)
    assert (told.latency, told.start_latency) == pytest.approx((seen.latency, seen.start_latency))
    for mine, theirs in zip(told.operators, seen.operators, strict=True):
        assert (mine.key, mine.best, mine.start, mine.trials, mine.slots, mine.failures) == (
            theirs.key, theirs.best, theirs.start, theirs.trials, theirs.slots, theirs.failures,
        )  # fmt: skip


# Budgets


@pytest.mark.parametrize("trials", [1, OPERATORS - 1, OPERATORS, OPERATORS + 1, 18])
def test_a_budget_of_trials_is_exact(trials: int, tmp_path: Path) -> None:
    measurer = SyntheticMeasurer()
    session, reason = play(tmp_path / "s", Budget(trials=trials), measurer, search="random", **QUICK)
    assert reason == "all trials are used"
    assert session.history.trials == len(measurer.measured) == len(contents(tmp_path / "s")["trials"]) == trials


@pytest.mark.parametrize("seconds", [0.1, 1.0, 4.0])
def test_a_budget_of_time_is_kept_to_the_trial(seconds: float, tmp_path: Path) -> None:
    session, reason = play(tmp_path / "s", Budget(seconds=seconds), search="random", **QUICK)
    assert reason == "the time is up"
    assert seconds <= session.elapsed <= seconds + TRIAL_SECONDS


def test_a_latency_is_tuned_for(tmp_path: Path) -> None:
    first, _ = play(tmp_path / "a", Budget(trials=OPERATORS), search="random", **QUICK)
    wanted = 0.9 * first.snapshot.start_latency
    session, reason = play(tmp_path / "b", Budget(until_latency=wanted, trials=400), search="random", **QUICK)
    assert reason == "the wanted latency is reached"
    assert session.snapshot.latency <= wanted
    assert session.history.trials > OPERATORS
    *_, (_, before), (_, _) = session.snapshot.curve
    assert before > wanted


def test_a_latency_that_the_model_has_already_needs_the_defaults_only(tmp_path: Path) -> None:
    session, reason = play(tmp_path / "s", Budget(until_latency=100.0), **QUICK)
    assert reason == "the wanted latency is reached"
    assert session.history.trials == OPERATORS


def test_without_a_budget_it_ends_when_nothing_improves(tmp_path: Path) -> None:
    session, reason = play(tmp_path / "s", Budget(), search="random", slot_trials=4, patience_trials=8)
    assert reason == "nothing improves any more"
    for operator in session.history.operators.values():
        last = operator.best_after[-9] if len(operator.best_after) > 8 else operator.best_after[-1]
        assert operator.exhausted or last == operator.best_after[-1]


# Who wins


def test_no_program_that_is_slower_than_the_default_wins(tmp_path: Path) -> None:
    def slower(candidate: Candidate) -> float:
        return 1e-3 if is_default(candidate) else 2e-3

    session, _ = play(tmp_path / "s", Budget(trials=20), SyntheticMeasurer(slower), search="random", **QUICK)
    winners = best_programs(session)
    assert winners == {key: replace(space(key).default, origin="default") for key in operators()}
    assert session.snapshot.latency == session.snapshot.start_latency


def test_a_program_that_is_fast_but_wrong_does_not_win(tmp_path: Path) -> None:
    def wrong(candidate: Candidate) -> float | FailureKind:
        return 1e-3 if is_default(candidate) else FailureKind.WRONG_RESULT

    session, _ = play(tmp_path / "s", Budget(trials=20), SyntheticMeasurer(wrong), search="random", **QUICK)
    assert {program.origin for program in best_programs(session).values()} == {"default"}
    assert session.snapshot.failures == {"wrong result": 20 - OPERATORS}


class DoesNothing:
    """Proposes, under the name of a proper program, one that leaves the result as it is: nothing could be faster."""

    uses_score = False

    def propose(self, question: Question) -> list[Realized]:
        func = question.space.func
        nothing = func.with_body(tirx.Evaluate(0)).with_attr("global_symbol", "main")
        example = question.space.draw(np.random.default_rng(question.seed))
        program = Program(question.space.key, example.sketch, example.decisions, "nothing")
        return [Realized(program, tvm.IRModule({"main": nothing}))]


class RealMeasurer(SyntheticMeasurer):
    """The real one, on the simulated clock."""

    def __init__(self, tuned: dict[str, Operator]) -> None:
        super().__init__()
        self.local = cpu_measurer(resolve_target(), {key: reference_text(o.func) for key, o in tuned.items()})

    def measure(self, programs: Any) -> Any:
        yield from self.local.measure(programs)


def test_a_program_that_does_nothing_is_found_out_by_the_real_measurer(tmp_path: Path) -> None:
    tuned = dict(list(operators().items())[:3])
    measurer = RealMeasurer(tuned)
    trials = {key: OperatorTrials(operator, space(key)) for key, operator in tuned.items()}
    with Store.open(tmp_path / "s") as store:
        name = begin_session(store, tuned, slot_trials=1)
        budget = Budget(trials=len(tuned) + 3)
        session = make_session(store, name, measurer, budget, proposer=DoesNothing(), trials=trials)
        try:
            session.run()
        finally:
            measurer.local.close()
        assert session.snapshot.failures == {"wrong result": 3}
        assert {program.origin for program in best_programs(session).values()} == {"default"}
        assert len(best_programs(session)) == len(tuned)


# What goes wrong


def test_nothing_works_at_all(tmp_path: Path) -> None:
    said: list[str] = []

    def listen(event: Event, snapshot: Snapshot) -> None:
        if event.kind == "message":
            said.append(str(event.data["text"]))

    broken = SyntheticMeasurer(lambda candidate: FailureKind.CRASH)
    session, reason = play(tmp_path / "s", Budget(until_latency=1.0), broken, watcher=listen, **QUICK)
    assert reason == "nothing improves any more"
    assert best_programs(session) == {}
    assert session.snapshot.latency == math.inf
    assert len(said) == OPERATORS
    assert all("cannot be measured" in text for text in said)


def test_an_operator_that_cannot_be_measured_is_left_alone_and_the_others_are_tuned(tmp_path: Path) -> None:
    bad = next(iter(operators()))

    def seconds(candidate: Candidate) -> float | FailureKind:
        return FailureKind.RUN_TIMEOUT if candidate.operator == bad else hashed(candidate)

    session, _ = play(tmp_path / "s", Budget(trials=30), SyntheticMeasurer(seconds), search="random", **QUICK)
    assert session.history.operators[bad].row.trials == 1
    assert bad not in best_programs(session)
    assert session.snapshot.latency < session.snapshot.start_latency < math.inf


def test_an_operator_whose_default_program_is_wrong_gets_another_one(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    operator = next(o for o in gpu_operators(dtype="float16") if o.kinds[0] == "conv2d")
    trials = {operator.key: OperatorTrials(operator, Space(operator.key, operator.func, some_gpu("float16")))}
    default = trials[operator.key].space.default
    realized = trials[operator.key].space.realize(default)
    assert realized is not None

    def seconds(candidate: Candidate) -> float | FailureKind:
        return FailureKind.WRONG_RESULT if candidate.module == realized.text else hashed(candidate)

    with Store.open(tmp_path / "s") as store:
        name = begin_session(store, {operator.key: operator}, search="random", **QUICK)
        session = make_session(store, name, SyntheticMeasurer(seconds), Budget(trials=8), trials=trials)
        session.run()
        assert math.isfinite(session.history.operators[operator.key].best)
        assert best_programs(session)[operator.key].identity != default.identity


def test_a_measurer_that_dies_loses_nothing(tmp_path: Path) -> None:
    def dies(candidate: Candidate) -> float:
        raise RuntimeError("the device is on fire")

    play(tmp_path / "s", Budget(trials=12), search="random", **QUICK)
    before = contents(tmp_path / "s")
    with pytest.raises(RuntimeError, match="on fire"):
        play(tmp_path / "s", Budget(trials=20), SyntheticMeasurer(dies))
    assert contents(tmp_path / "s")["trials"] == before["trials"]
    play(tmp_path / "s", Budget(trials=20))
    play(tmp_path / "whole", Budget(trials=12), search="random", **QUICK)
    play(tmp_path / "whole", Budget(trials=20))
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


# Sharing a store


def test_another_session_starts_where_the_first_got_to(tmp_path: Path) -> None:
    first, _ = play(tmp_path / "s", Budget(trials=30), search="random", **QUICK)
    measurer = SyntheticMeasurer()
    second, _ = play(tmp_path / "s", Budget(trials=3 * OPERATORS), measurer, again=True, search="random", **QUICK)
    for key, operator in first.history.operators.items():
        assert second.history.operators[key].best_after[-1] <= operator.best_after[-1]
        assert second.history.operators[key].best_after[0] == operator.best_after[0]
    slots = [(int(candidate.label.split(":")[0]), candidate.operator) for candidate in measurer.measured]
    asked = Counter(operator for slot, operator in slots if slot < OPERATORS)
    assert set(asked) == set(operators())
    assert all(1 <= count <= 3 for count in asked.values())


def test_two_sessions_on_one_store_at_the_same_time(tmp_path: Path) -> None:
    """Slot by slot in turn, each from inside the other's measuring."""
    path = tmp_path / "s"
    with Store.open(path) as mine, Store.open(path) as other:
        names = [begin_session(mine, search="random", seed=seed, **QUICK) for seed in (1, 2)]
        inner = make_session(other, names[1], SyntheticMeasurer(), Budget(trials=20))
        turns: list[str] = []

        def seconds(candidate: Candidate) -> float | FailureKind:
            if not turns:
                turns.append(inner.run())
            return hashed(candidate)

        outer = make_session(mine, names[0], SyntheticMeasurer(seconds), Budget(trials=20))
        assert outer.run() == "all trials are used"
        assert turns == ["all trials are used"]
        for session in (outer, inner):
            assert sum(1 for _ in mine.trials(session=session.session)) == 20


def test_events_and_snapshots(tmp_path: Path) -> None:
    events: list[tuple[Event, float]] = []
    session, _ = play(
        tmp_path / "s",
        Budget(trials=48),
        watcher=lambda event, snapshot: events.append((event, snapshot.latency)),
        search="random",
        **QUICK,
    )
    kinds = Counter(event.kind for event, _ in events)
    assert kinds["trial"] == 48
    assert kinds["slot"] == kinds["slot_done"] + (1 if session._open else 0)
    assert [event.data["phase"] for event, _ in events if event.kind == "phase"] == ["defaults", "tune"]
    assert all(event.data["operator"] in operators() for event, _ in events if event.kind in ("slot_done", "improved"))
    improved = [latency for event, latency in events if event.kind == "improved"]
    assert improved == sorted(improved, reverse=True)
    assert improved
    assert improved[-1] == session.snapshot.latency
    elapsed = [event.elapsed for event, _ in events]
    assert elapsed == sorted(elapsed)


class Shuffled(SyntheticMeasurer):
    """Answers four programs at a time, the last first, as a measurer with several workers may."""

    def measure(self, programs: Any) -> Any:
        group: list[Measurement] = []
        for measurement in super().measure(programs):
            group.append(measurement)
            if len(group) == 4:
                yield from reversed(group)
                group = []
        yield from reversed(group)


def test_the_order_in_which_results_come_does_not_matter(tmp_path: Path) -> None:
    def bests(measurer: SyntheticMeasurer, path: Path) -> dict[str, float]:
        session: Session = play(path, Budget(trials=24), measurer, search="random", scheduler="gradient", **QUICK)[0]
        return {key: operator.best_after[-1] for key, operator in session.history.operators.items()}

    assert bests(Shuffled(), tmp_path / "a") == bests(SyntheticMeasurer(), tmp_path / "b")
    with Store.open(tmp_path / "a") as mine, Store.open(tmp_path / "b") as other:
        assert [s.programs for s in mine.slots(mine.sessions()[0].id)] == [
            s.programs for s in other.slots(other.sessions()[0].id)
        ]


def test_it_ends_when_little_is_left_to_gain_and_goes_on_with_another_rule(tmp_path: Path) -> None:
    seen: list[float] = []

    def watch(event: Event, snapshot: Snapshot) -> None:
        if event.kind == "slot_done":
            assert snapshot.left is not None
            seen.append(snapshot.left.at_most)

    options: dict[str, Any] = {"search": "random", **QUICK}
    session, reason = play(tmp_path / "s", Budget(until_gain_below=0.25), watcher=watch, **options)
    assert session.snapshot.left is not None
    assert reason == f"{session.snapshot.left.described(2)}, less than the 25 % asked for"
    assert seen[-1] < 0.25 <= min(seen[:-1])
    with Store.open(tmp_path / "s", read_only=True) as store:
        assert snapshot_of(store, session.session).left == session.snapshot.left
    _, again = play(tmp_path / "s", Budget(until_gain_below=0.25), watcher=watch, **options)
    assert again == reason
    longer, why = play(tmp_path / "s", Budget(trials=session.history.trials + 4), watcher=watch, **options)
    assert why == "all trials are used"
    assert longer.history.trials == session.history.trials + 4
