"""The table of what a pause costs, from a result in which it is known."""

from __future__ import annotations

from benchmarks.pauses import BACK_TO_BACK, PAUSES, markdown, numbers


def test_a_round_is_held_against_its_own_calls_back_to_back() -> None:
    slower = {name: [2e-3, 6e-3] for name in PAUSES}
    found = {**slower, BACK_TO_BACK: [1e-3, 4e-3]}
    data = {"a, Machine": {"slipstream, 2": found}}
    assert "| a, Machine | slipstream | 2 | 2.50 | 1.75 (1.62 - 1.88) |" in markdown(data)
    assert numbers(data)["a, Machine: slipstream, 2, 20 ms, asleep"] == "1.75"
