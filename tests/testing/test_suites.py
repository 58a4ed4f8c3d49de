"""The suites find what they are there to find: an implementation with one fault fails the test for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.measure.types import Candidate, Measurement
from slipstream.plugins import Context
from slipstream.program.space import Realized
from slipstream.search.random import Random
from slipstream.search.types import Question
from slipstream.store import Store, TrialRecord
from slipstream.testing.measurer_suite import MeasurerSuite
from slipstream.testing.search_suite import SearchSuite
from slipstream.testing.store_suite import StoreSuite
from tests.session.synthetic import SyntheticMeasurer


class _Faulty(Random):
    """A sound search to spoil."""

    def propose(self, question: Question) -> list[Realized]:
        return self.spoil(question)

    def spoil(self, question: Question) -> list[Realized]:
        raise NotImplementedError


class _ForgetsWhatWasMeasured(_Faulty):
    def spoil(self, question: Question) -> list[Realized]:
        return super(_Faulty, self).propose(replace(question, measured=(), seed=1))


class _Remembers(_Faulty):
    asked = 0

    def spoil(self, question: Question) -> list[Realized]:
        self.asked += 1
        return super(_Faulty, self).propose(replace(question, seed=self.asked))


class _ProposesTooMuch(_Faulty):
    def spoil(self, question: Question) -> list[Realized]:
        return super(_Faulty, self).propose(replace(question, count=question.count + 1))


class _ProposesForAnother(_Faulty):
    def spoil(self, question: Question) -> list[Realized]:
        found = super(_Faulty, self).propose(question)
        return [replace(one, program=replace(one.program, operator="another")) for one in found]


class _SaysItScores(_Faulty):
    uses_score = True

    def spoil(self, question: Question) -> list[Realized]:
        return super(_Faulty, self).propose(question)


@pytest.mark.parametrize(
    ("search", "test"),
    [
        (_ForgetsWhatWasMeasured, "test_nothing_is_proposed_twice"),
        (_Remembers, "test_proposals_follow_from_the_question_alone"),
        (_ProposesTooMuch, "test_no_more_is_proposed_than_asked_for"),
        (_ProposesForAnother, "test_proposals_are_legal_programs_of_the_operator"),
        (_SaysItScores, "test_the_score_is_asked_only_if_it_says_so"),
    ],
)
def test_a_fault_of_a_search_is_found(search: type[_Faulty], test: str) -> None:
    class Suite(SearchSuite):
        def make(self, context: Context) -> Random:
            return search()

    with pytest.raises(AssertionError):
        getattr(Suite(), test)()


class _Measurer(SyntheticMeasurer):
    def __init__(self) -> None:
        super().__init__(lambda program: 1e-3)


class _LeavesOneOut(_Measurer):
    def measure(self, programs: Iterable[Candidate]) -> Iterator[Measurement]:
        return super().measure(list(programs)[:-1])


class _TakesAllAtOnce(_Measurer):
    def measure(self, programs: Iterable[Candidate]) -> Iterator[Measurement]:
        return super().measure(list(programs))


class _ClosesOnce(_Measurer):
    closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@pytest.mark.parametrize(
    ("measurer", "test"),
    [
        (_LeavesOneOut, "test_there_is_one_measurement_for_every_program"),
        (_TakesAllAtOnce, "test_results_stream_and_programs_are_taken_as_needed"),
        (_Measurer, "test_broken_and_wrong_programs_are_failures_and_the_next_is_measured"),
        (_Measurer, "test_none_means_that_there_is_no_program_yet"),
        (_ClosesOnce, "test_closing_twice_is_no_trouble"),
    ],
)
def test_a_fault_of_a_measurer_is_found(measurer: type[_Measurer], test: str) -> None:
    class Suite(MeasurerSuite):
        def make(self, context: Context) -> _Measurer:
            return measurer()

    with pytest.raises((AssertionError, AttributeError)):
        getattr(Suite(), test)()


class _FailuresAreFast(Store):
    def top(self, operator: str, hardware: str, count: int) -> list[TrialRecord]:
        return list(self.trials(operator=operator, hardware=hardware))[:count]


class _ForgetsHardware(Store):
    def trials(self, **what: Any) -> Iterator[TrialRecord]:
        return super().trials(**{name: value for name, value in what.items() if name != "hardware"})


class _StoresOneByOne(Store):
    def append_trials(self, records: Iterable[TrialRecord]) -> None:
        for record in records:
            self.append_trial(record)


@pytest.mark.parametrize(
    ("store", "test"),
    [
        (_FailuresAreFast, "test_the_best_is_the_fastest_program_that_worked"),
        (_ForgetsHardware, "test_what_was_measured_on_other_hardware_does_not_count"),
        (_StoresOneByOne, "test_of_a_batch_all_or_nothing_is_stored"),
    ],
)
def test_a_fault_of_a_store_is_found(store: type[Store], test: str) -> None:
    class Suite(StoreSuite):
        def open(self, folder: Path) -> Store:
            return store.open(folder / "store.db")

    with pytest.raises(AssertionError):
        getattr(Suite(), test)()
