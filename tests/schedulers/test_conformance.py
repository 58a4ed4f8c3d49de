"""Every scheduler passes the suite that third parties can run."""

from __future__ import annotations

import pytest

from slipstream.plugins import make, names
from slipstream.schedulers.oracle import Oracle
from slipstream.testing.scheduler_suite import SchedulerSuite


def _suite(name: str) -> type[SchedulerSuite]:
    def make_it(self, context):
        return make("scheduler", name, context)

    return type(f"Test_{name}", (SchedulerSuite,), {"make": make_it, "greedy": name == "sequential"})


for _name in sorted({*names("scheduler")} - {"dynatune_paper", "dynatune"}):
    globals()[f"Test_{_name}"] = _suite(_name)


class TestOracle(SchedulerSuite):
    greedy = True

    def make(self, context):
        return Oracle(slot_trials=context.slot_trials, curves=self.curves)


@pytest.mark.slow  # a forecast of the published belief takes a tenth of a second
class TestDynatunePaper(_suite("dynatune_paper")):  # type: ignore[misc]
    most_seconds = 5.0

    def test_the_unit_of_time_does_not_matter(self) -> None:
        """It does to this one, which adds milliseconds to a pure number: the flaw that our own bound avoids."""
        with pytest.raises(AssertionError):
            super().test_the_unit_of_time_does_not_matter()
