"""The conformance suite finds what it is there to find: a scheduler with one fault fails the test for it."""

from __future__ import annotations

import time

import pytest

from slipstream.schedulers.types import OperatorState
from slipstream.testing.scheduler_suite import SchedulerSuite


def _least_served(operators: list[OperatorState]) -> str | None:
    left = [operator for operator in operators if not operator.finished]
    return min(left, key=lambda operator: operator.slots).key if left else None


class _PicksFinished:
    def pick(self, operators, slot):
        return operators[slot % len(operators)].key if operators and _least_served(operators) else None


class _NeverStops:
    def pick(self, operators, slot):
        return _least_served(operators) or (operators[0].key if operators else None)


class _Remembers:
    def __init__(self):
        self.turn = 0

    def pick(self, operators, slot):
        left = [operator.key for operator in operators if not operator.finished]
        self.turn += 1
        return left[self.turn % len(left)] if left else None


class _Starves:
    def pick(self, operators, slot):
        left = [operator.key for operator in operators if not operator.finished]
        return left[0] if left else None


class _CountsInSeconds:
    def pick(self, operators, slot):
        left = [operator for operator in operators if not operator.finished]
        return max(left, key=lambda o: o.latency + 1 / (1 + o.slots)).key if left else None


class _CannotBearFailures:
    def pick(self, operators, slot):
        if any(operator.best > 1e9 for operator in operators):
            raise ZeroDivisionError
        return _least_served(operators)


class _Slow:
    def pick(self, operators, slot):
        until = time.process_time() + (0.06 if len(operators) > 100 else 0)
        while time.process_time() < until:
            pass
        return _least_served(operators)


@pytest.mark.parametrize(
    ("scheduler", "test"),
    [
        (_PicksFinished, "test_finished_operators_are_never_picked"),
        (_NeverStops, "test_there_is_no_pick_when_all_are_finished"),
        (_Remembers, "test_a_pick_depends_on_arguments_and_seed_alone"),
        (_Starves, "test_every_operator_gets_a_slot"),
        (_CountsInSeconds, "test_the_unit_of_time_does_not_matter"),
        (_CannotBearFailures, "test_operators_without_a_valid_program_are_no_trouble"),
        (_CannotBearFailures, "test_late_first_measurements_are_no_trouble"),
        (_Slow, "test_a_thousand_operators_are_handled_quickly"),
    ],
)
def test_a_fault_is_found(scheduler, test):
    class Suite(SchedulerSuite):
        def make(self, context):
            return scheduler()

    with pytest.raises((AssertionError, ZeroDivisionError)):
        getattr(Suite(), test)()
