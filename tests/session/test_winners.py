"""Who races at the end of a session for a place in the model."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from slipstream.session.winners import settle_near_ties


def _session(seconds: dict[str, float]) -> Any:
    """One operator with programs of these origins; realizing one gives its origin as text."""
    programs = {origin: SimpleNamespace(origin=origin) for origin in seconds}
    known = [SimpleNamespace(program=programs[origin], seconds=value) for origin, value in seconds.items()]
    space = SimpleNamespace(realize=lambda program: SimpleNamespace(text=program.origin))
    return SimpleNamespace(
        operators={"op": SimpleNamespace(known=lambda: known, space=space)},
        history=SimpleNamespace(operators={"op": SimpleNamespace(key="op", name="op", latency=1.0)}),
        elapsed=0.0,
        settings=SimpleNamespace(seed=0),
        snapshot=SimpleNamespace(doing=""),
    )


class _Race:
    """A measurer in whose races the program called `winner` wins."""

    def __init__(self, winner: str) -> None:
        self.winner, self.raced = winner, list[str]()

    def settle(self, measurements: list[Any], rng: np.random.Generator, enough: Callable[[], bool]) -> Any:
        assert len({m.median for m in measurements}) == 1
        self.raced = [m.program.module for m in measurements]
        winner = next(m for m in measurements if m.program.module == self.winner)
        return SimpleNamespace(winner=winner, decided=not enough())


def test_the_default_program_races_however_slow_it_once_looked():
    session, race, winners = _session({"default": 2.0, "lucky": 1.0, "near": 1.04, "slow": 1.5}), _Race("default"), {}
    assert settle_near_ties(session, race, winners, 10.0) == 1
    assert race.raced == ["lucky", "near", "default"]
    assert winners["op"].origin == "default"


def test_the_default_program_races_once_and_not_alone():
    race = _Race("default")
    settle_near_ties(_session({"default": 1.0, "near": 1.01}), race, {}, 10.0)
    assert race.raced == ["default", "near"]
    assert settle_near_ties(_session({"default": 1.0, "slow": 1.5}), race, {}, 10.0) == 0


def test_a_race_that_had_to_end_is_won_by_a_default_program_that_is_hardly_slower():
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 1  # in the middle of the race

    for near, origin in ((0.97, "default"), (0.9, "near")):
        asked.clear()
        winners = {"op": SimpleNamespace(origin="near")}
        settle_near_ties(_session({"default": 1.0, "near": near}), _Race("near"), winners, 10.0, stop)
        assert winners["op"].origin == origin


def test_without_time_to_race_a_default_program_that_is_hardly_slower_stays():
    race, winners = _Race("near"), {"op": SimpleNamespace(origin="near")}
    assert settle_near_ties(_session({"default": 1.0, "near": 0.97}), race, winners, 0.0) == 0
    assert winners["op"].origin == "default"
    winners = {"op": SimpleNamespace(origin="fast")}
    settle_near_ties(_session({"default": 1.0, "fast": 0.9}), race, winners, 0.0)
    assert winners["op"].origin == "fast"
    assert race.raced == []
