"""Trees that are told how programs fill a GPU, on the package's priors."""

from __future__ import annotations

import argparse
import math

from benchmarks import occupancy
from slipstream.diffusion.distilled import SHIPPED


def test_operators_of_the_priors_are_ranked_in_both_ways() -> None:
    options = argparse.Namespace(priors=SHIPPED, most=8, seeds=1, seed=0)
    data = dict(occupancy.measure(options))
    assert set(data) == {"sm_90"}
    rows = data["sm_90"]
    assert {row["own"] for row in rows} == {0, 8}
    for row in rows:
        for correlation, speed in (row["decisions"], row["occupancy"]):
            assert -1 <= correlation <= 1
            assert 0 <= speed <= 1


def test_means_are_of_the_operators_with_as_many_programs_known() -> None:
    rows = [
        {"own": 0, "decisions": [0.2, 0.25], "occupancy": [0.4, 1.0]},
        {"own": 0, "decisions": [0.4, 1.0], "occupancy": [0.6, 1.0]},
        {"own": 8, "decisions": [0.5, 0.0], "occupancy": [0.5, 1.0]},
    ]
    numbers = occupancy.numbers({"sm_90": rows})
    assert numbers["sm_90: decisions, 0 own, correlation"] == "0.30"
    assert numbers["sm_90: decisions, 0 own, speed"] == "0.50"
    assert numbers["sm_90: occupancy, 0 own, correlation"] == "0.50"
    assert math.isclose(float(numbers["sm_90: decisions, 8 own, speed"]), 0.05)
    assert "| sm_90 | 8 | 1 | 0.50 | 0.50 | 0.05 | 1.00 |" in occupancy.markdown({"sm_90": rows})
