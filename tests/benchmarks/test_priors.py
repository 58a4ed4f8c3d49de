"""The table of distilled priors, from a result in which it is known who was faster."""

from __future__ import annotations

from typing import Any

from benchmarks.priors import LONG, SHORT, WITH, markdown, numbers, to_long


def run(side: str, seed: int, last: int) -> dict[str, Any]:
    return {"side": side, "seed": seed, "steps": [(1.0, "a", 0), (2.0, "a", last)], "seconds": 30.0, "trials": 10}


def test_short_sessions_are_compared_with_the_long_one_of_the_same_seed() -> None:
    ends = {WITH: (1, 2), SHORT: (0, 0), LONG: (1, 1)}
    result = {
        "distilled": ["other"],
        "budgets": {WITH: "30s", SHORT: "30s", LONG: "2m"},
        "operators": {"a": {"name": "a", "weight": 2, "default": 0}},
        "seconds": {"a": [4e-3, 2e-3, 1e-3]},
        "runs": [run(side, seed, last) for side, lasts in ends.items() for seed, last in enumerate(lasts)],
        "whole": {f"{side}, seed {seed}": [[1.0 + (side == SHORT)]] for side in ends for seed in (0, 1)},
    }
    assert to_long(result, WITH) == [1.0, 0.5]
    assert to_long(result, SHORT) == [2.0, 2.0]
    assert numbers({"m": result}) == {
        f"m: {WITH} to long": "0.75",
        f"m: {SHORT} to long": "2.00",
        f"m: {WITH}, whole model to long": "1.00",
        f"m: {SHORT}, whole model to long": "2.00",
    }
    page = markdown({"m": result})
    assert "Distilled, each without the judged model: other." in page
    without = "| 30 (30 - 30) | 10 (10 - 10) | 8.00 (8.00 - 8.00) | 4.000 (4.000 - 4.000) | 2.000 (2.000 - 2.000)"
    assert f"| short, without (30s) {without} | 2.000 (2.000 - 2.000) |" in page
