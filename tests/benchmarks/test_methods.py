"""Tables of both methods, from results in which it is known who was faster, and when."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.held_programs import _in_turns
from benchmarks.methods_table import CORNER, curve, lowest, markdown, numbers, picture, reached, times, untuned
from slipstream.machine.target import resolve_target
from slipstream.measure import Measurement, Settling, cpu_measurer, reference_text
from tests.measure.test_cpu import MATMUL, scheduled_matmul, unscheduled_matmul

OURS = "dynatune, diffusion 8"


def run(side: str, seed: int, steps: list[tuple[float, str, int]], seconds: float = 100.0) -> dict[str, Any]:
    return {"side": side, "seed": seed, "steps": steps, "seconds": seconds, "trials": 10}


@pytest.fixture
def result() -> dict[str, Any]:
    """Two operators, the first called twice: 4 s untuned, 2 s at best."""
    slow = [(10.0, "a", 0), (10.0, "b", 0), (40.0, "a", 1), (80.0, "b", 1)]
    quick = [(10.0, "a", 0), (10.0, "b", 0), (20.0, "a", 1), (20.0, "b", 1)]
    return {
        "operators": {"a": {"name": "a", "weight": 2, "default": 0}, "b": {"name": "b", "weight": 1, "default": 0}},
        "seconds": {"a": [1.0, 0.5, None], "b": [2.0, 1.0]},
        "runs": [run(CORNER, 0, slow), run(CORNER, 1, slow[:3]), run(OURS, 0, quick), run(OURS, 1, quick)],
        "whole": {
            f"{side}, seed {seed}": [[2.0 if side == CORNER else 1.0]] for side in (CORNER, OURS) for seed in (0, 1)
        },
    }


def test_latency_is_of_the_times_measured_afterwards(result: dict[str, Any]) -> None:
    assert curve(result, result["runs"][0]) == [(0.0, 4.0), (10.0, 4.0), (10.0, 4.0), (40.0, 3.0), (80.0, 2.0)]
    assert lowest(result) == 2.0
    assert untuned(result) == 2.0
    # A program that fails now is as slow as the slowest.
    assert curve(result, run(OURS, 2, [(5.0, "a", 1), (9.0, "a", 2)]))[-1] == (9.0, 4.0)


def test_a_latency_counts_as_reached_when_it_stays() -> None:
    assert reached([(0.0, 4.0), (5.0, 2.0), (6.0, 3.0), (7.0, 2.0)], 2.5) == 7.0
    assert reached([(0.0, 2.0), (5.0, 3.0)], 2.5) == float("inf")


def test_who_is_sooner_and_who_never_gets_there(result: dict[str, Any]) -> None:
    assert times(result, CORNER, 0.01) == [80.0, float("inf")]
    assert times(result, OURS, 0.01) == [20.0, 20.0]
    page = markdown({"model": result})
    assert "| gradient, evolution 64 | 2 | 10 (10 - 10) | > 100 | > 100 | > 100 | > 100 |" in page
    assert times(result, CORNER, None) == [40.0, 40.0]
    assert "| dynatune, diffusion 8 | 2.0 (2.0 - 2.0) | > 4.5 (4.0 - 5.0) |" in page
    assert "2.00 (2.00 - 2.00)" in page
    assert "Nothing to tune" not in page
    # A median that was never reached is no number.
    assert {key: value for key, value in numbers({"model": result}).items() if key.startswith("model: ")} == {
        f"model: {CORNER} to its last latency": "1.0",
        f"model: {OURS} to its last latency": "2.0",
    }


def test_a_model_with_nothing_to_tune_is_listed_apart(result: dict[str, Any], tmp_path: Path) -> None:
    result["seconds"] = {"a": [0.5, 0.5, None], "b": [1.0, 1.0]}
    assert "Nothing to tune (default programs within 10 % of the best known): model." in markdown({"model": result})
    picture({"model": result}, tmp_path / "p.svg")
    assert "latency to the best known" in (tmp_path / "p.svg").read_text()


def test_programs_with_the_same_code_have_the_same_time():
    programs = [scheduled_matmul(tile, prepack=False, label=str(n)) for n, tile in enumerate((8, 16, 16, 8))]
    ready = [Measurement(program, samples=(1.0,)) for program in programs]
    settling = Settling(near=math.inf, most_finalists=10, least_rounds=3, most_rounds=3)
    with cpu_measurer(resolve_target(), {MATMUL: reference_text(unscheduled_matmul())}) as measurer:
        found = _in_turns(measurer, ready, np.random.default_rng(0), settling)
    assert sorted(found) == [0, 1, 2, 3]
    assert found[3] == found[0]
