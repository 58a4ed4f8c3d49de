"""Committed tables are those of the committed raw results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import ablation, guess, speedup_table, warm_start
from benchmarks.ablation import at, time_to

RESULTS = Path(ablation.__file__).parent / "results"


@pytest.mark.parametrize(
    ("name", "table"),
    [("speedup", speedup_table), ("ablation", ablation), ("warm_start", warm_start), ("guess", guess)],
)
def test_a_table_is_made_from_raw_results_alone(name, table):
    raw = json.loads((RESULTS / f"{name}.json").read_text())
    assert (RESULTS / f"{name}.md").read_text() == table.markdown(raw)


def test_time_is_read_off_a_curve():
    run = {"curve": [(10.0, 3.0), (20.0, 2.0), (30.0, 1.0)]}
    assert (at(run, 25), time_to(run, 2.5)) == (2.0, 20.0)
    assert at(run, 5) == time_to(run, 0.5) == float("inf")


def test_a_side_is_there_with_its_first_artifact_within_one_per_cent():
    def stage(seconds: float, latency: float) -> dict[str, object]:
        return {"seconds": seconds, "blocks": [[latency] * 3, [latency] * 3]}

    stages = {
        "preset 1 min": stage(70, 2.0),
        "preset own": stage(50, 0.5),
        "preset end": stage(900, 1.0),
        "ours-0 1 min": stage(65, 1.02),
        "ours-0 2 min": stage(125, 1.005),
        "ours-0 end": stage(190, 0.9),
    }
    result = {"stages": stages, "sides": {"preset": {}, "ours-0": {}}}
    assert speedup_table.reached(result, "ours-0", "preset end") == 125
    assert speedup_table.reached(result, "preset", "preset end") == 900
    assert speedup_table.reached(result, "ours-0", "preset own") == float("inf")
