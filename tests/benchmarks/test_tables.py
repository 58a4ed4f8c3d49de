"""Committed tables are those of the committed raw results."""

from __future__ import annotations

import math
from importlib import import_module

import pytest

from benchmarks import gpu_table, latency, runner
from benchmarks.ablation_table import after_as_many, at, slower, time_to, together

MEASURED = [name for name in runner.titles() if runner.read(name) is not None]


@pytest.mark.parametrize("name", MEASURED)
def test_a_table_is_made_from_raw_results_alone(name):
    raw = runner.read(name)
    assert raw is not None
    assert (runner.RESULTS / f"{name}.md").read_text() == runner.page_of(import_module(f"benchmarks.{name}"), raw)


@pytest.mark.parametrize("name", ["ablation", "methods", "originals"])
def test_a_picture_is_made_from_raw_results_alone(name, tmp_path):
    raw = runner.read(name)
    assert raw is not None
    import_module(f"benchmarks.{name}").picture(runner.data_of(raw), tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_text() == (runner.RESULTS / f"{name}.svg").read_text()


def test_every_benchmark_says_how_long_it_takes():
    for name, title in runner.titles().items():
        assert title.endswith((").", "):", ")")), f"{name}: {title}"
        assert "(" in title, name


def test_results_of_a_named_machine_have_a_table_and_means_of_their_own():
    def model(ours: float, theirs: float) -> dict[str, object]:
        found = {"slipstream": ours, "slipstream untuned": 2 * ours, "onnxruntime": theirs}
        return {"sides": {side: {"blocks": [[seconds]], "error": 0.0} for side, seconds in found.items()}}

    data = {"a": model(1.0, 3.0), "a, Other": {**model(1.0, 5.0), "machine": "Other"}}
    numbers = latency.numbers(data)
    assert {key: numbers[key] for key in ("models", "mean onnxruntime", "a onnxruntime")} == {
        "models": "1",
        "mean onnxruntime": "3.00",
        "a onnxruntime": "3.00",
    }
    assert numbers["mean onnxruntime, Other"] == numbers["a, Other onnxruntime"] == "5.00"
    first, other = latency.markdown(data).split("\n## Other\n")
    assert "| a, Other |" not in first
    assert "| a |" not in other
    assert "| geometric mean | | 2.00 | 5.00 |" in other


def test_a_gpu_run_without_a_preset_is_held_against_one_on_the_same_model():
    seconds = {"wall_seconds": 9.0, "budget_seconds": 10.0, "trials": 1, "trials_per_second": 1.0}
    result = {"failures": {}, "start_latency": 4.0, "latency": 1.0, "end_to_end": 1.0}

    def run(model: str, curve: list[tuple[float, float]]) -> dict[str, object]:
        about = {"model": model, "dtype": "float32", "seed": 0, "device": {"name": "a GPU"}, "cores": 4}
        return {**about, "ours": {**seconds, **result, "curve": curve}}

    preset = {"curve": [(100.0, 3.0), (200.0, 2.0)], "latency": 2.0, "trials": 5, "trials_per_second": 0.5}
    runs = {
        "with": {**run("zoo:a", [(10.0, 3.0), (50.0, 1.0)]), "preset": preset},
        "without": run("zoo:a", [(20.0, 2.0)]),
        "never": run("zoo:a", [(20.0, 2.5)]),
        "in vain": {**run("zoo:b", [(20.0, 1.0)]), "preset": {**preset, "curve": []}},
        "other": run("zoo:c", [(20.0, 1.0)]),
    }
    rows = [line.split(" | ") for line in gpu_table.markdown(runs).splitlines()]
    assert [row[-3:] for row in rows if row[1:2] in (["with"], ["in vain"])] == [
        ["200", "50", "4.0 |"],
        ["200", "20", "10.0 |"],
        ["200", "never", " |"],
        ["nothing found", "20", " |"],
    ]


def test_time_is_read_off_a_curve():
    run = {"curve": [(10.0, 3.0), (20.0, 2.0), (30.0, 1.0)]}
    assert (at(run, 25), time_to(run, 2.5)) == (2.0, 20.0)
    assert at(run, 5) == time_to(run, 0.5) == float("inf")


def test_runs_of_different_pace_are_compared_after_as_many_trials():
    slow = {"curve": [(10.0, 4.0, 20), (20.0, 2.0, 30)]}
    fast = {"curve": [(10.0, 4.0, 20), (15.0, 2.5, 29), (20.0, 1.0, 40)]}
    assert after_as_many(slow, fast) == 2.0 / 2.5
    assert after_as_many(fast, slow) == 2.5 / 2.0
    assert after_as_many({"curve": []}, fast) != after_as_many({"curve": []}, fast)  # nothing to compare: not a number


def test_what_was_timed_again_counts_and_not_what_sessions_believed():
    whole = {"curve": [(10.0, 4.0, 20)], "trials": 20, "held": {"20": 8.0, "15": 9.0}}
    without = {"curve": [(10.0, 2.0, 15)], "trials": 15, "held": {"15": 10.0}}
    assert after_as_many(without, whole) == 10.0 / 9.0
    assert after_as_many(whole, whole) == 1.0
    assert math.isnan(slower(without, whole, 2))


def _run(pace: float, latencies: list[float]) -> dict[str, object]:
    """A curve with a point every ten trials, each of which took so many seconds."""
    return {"curve": [(10 * pace * n, latency, 10 * n) for n, latency in enumerate(latencies, 1)], "trials": 0}


def test_a_part_is_worth_what_it_saves_to_equal_latency():
    whole, without = _run(1.0, [8.0, 4.0, 2.0, 1.0]), _run(2.0, [8.0, 6.0, 5.0, 4.0, 1.0])
    assert slower(without, whole, 2) == 40 / 20, "what both had reached after 40 trials: 4.0"
    assert slower(without, whole, 0) == 80 / 20
    assert slower(whole, without, 2) == 20 / 40, "the other way round"
    assert slower(whole, whole, 0) == 1.0


def test_runs_of_all_models_on_a_target_are_counted_together():
    whole, without = _run(1.0, [8.0, 4.0]), _run(1.0, [8.0, 8.0])
    runs = {"everything": dict.fromkeys("012", whole), "no guess": dict.fromkeys("012", without)}
    result = {"budget": 20.0, "runs": runs}
    assert not together({"a": result, "b on cuda": result}), "three runs are too few"
    lines = together({"a": result, "b": result, "c on cuda": result})
    assert lines[1] == "All models on a CPU (a, b); geometric means with 95 % intervals:"
    assert lines[-1] == "| no guess | 6 | 2.00 (2.00 - 2.00) | 1.00 (1.00 - 1.00) | 1.00 (1.00 - 1.00) |"
