"""DynaTune's figures from small synthetic curves, the recording's file, and the arithmetic of the table."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the figures need matplotlib")
pytest.importorskip("emcee", reason="the traces need emcee")

from benchmarks.dynatune import (
    against_chameleon,
    calibration,
    challenges,
    left_out,
    replays,
    summary,
    transformation_space,
)
from benchmarks.dynatune.__main__ import main
from benchmarks.dynatune.curves import OperatorCurve, Recording, RecordingError, read_all
from benchmarks.dynatune.plotting import band
from benchmarks.dynatune.record import curve_of
from benchmarks.dynatune.tuners import TUNERS
from slipstream.plugins import Context
from slipstream.schedulers.replay import RecordedCurve
from slipstream.schedulers.types import OperatorState
from slipstream.session.history import OperatorHistory, Slot, Trial
from slipstream.session.settings import Settings, SettingsError, make_settings
from slipstream.testing.scheduler_suite import SchedulerSuite
from slipstream.testing.synthetic import model_curves

PEAK = 1e11


def compact(curve: RecordedCurve) -> OperatorCurve:
    """A curve as the recorder would write it."""
    last = curve.trials
    at = [i for i in range(last + 1) if i in (0, last) or curve.best[i] < curve.best[i - 1]]
    return OperatorCurve(
        curve.key,
        f"operator {curve.key}",
        curve.weight,
        curve.flops,
        curve.similar,
        tuple(at),
        tuple(curve.seconds[i] for i in at),
        tuple(curve.best[i] for i in at),
    )


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small models; one has an operator that cannot be tuned and one that never ran."""
    folder = tmp_path_factory.mktemp("curves")
    for seed, name in enumerate(("first", "second")):
        drawn = model_curves(np.random.default_rng(seed), 4, 36, PEAK)
        operators = [
            *map(compact, drawn),
            OperatorCurve("reshape", "reshape", 1, 0, (), (0,), (0.0,), (1e-6,)),
            OperatorCurve("broken", "broken", 1, 10, (), (0,), (0.0,), (None,)),
        ]
        Recording(name, 0, PEAK, {"date": "today"}, tuple(operators)).write(folder)
    about = {"load": [1.0], "load_at_end": [2.0], "options": {"threads": 1}, "machine": {"cores": 2}}
    for quicker, tuner in zip((1.0, 0.5, 0.75), TUNERS, strict=True):
        # The same curves, recorded in less time.
        drawn = model_curves(np.random.default_rng(0), 3, 36, PEAK)
        drawn = [replace(curve, seconds=[quicker * t for t in curve.seconds]) for curve in drawn]
        Recording("first", 0, PEAK, about, tuple(map(compact, drawn))).write(folder / "tuners" / tuner)
    rate = [[1.0, 2.0, 1.9], [1.1, None, 1.0], [1.2, 3.0, 1.0]]
    measured = {"operator": "conv", "sizes": [1, 2, 4], "gflops": rate, "about": {}}
    (folder / "transformation_space.json").write_text(json.dumps(measured))
    return folder


@pytest.fixture(scope="module")
def made(curves: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every figure and table, as `python -m benchmarks.dynatune` makes them."""
    folder = tmp_path_factory.mktemp("made")
    arguments = ["--curves", curves, "--figures", folder / "figures", "--results", folder / "results"]
    main([*map(str, arguments), "--seeds", "2", "--slot-trials", "18"])
    return {path.name: path for path in folder.rglob("*.*")}


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "name",
    [
        "against_sequential", "against_static", "against_dynamic", "action_functions", "against_gradient",
        "against_gradient_detail", "ablation", "regret", "calibration", "curve_fitting", "mcmc_traces",
        "scheduling_cost", "cost_and_gain", "transformation_space", "tuning_curves", "against_chameleon",
    ],
)  # fmt: skip
def test_every_figure_has_a_picture_and_a_table(made: dict[str, Path], name: str) -> None:
    assert made[f"{name}.png"].read_bytes().startswith(b"\x89PNG")
    assert made[f"{name}.png"].stat().st_size > 10_000
    rows = table(made[f"{name}.csv"])
    assert rows
    assert all(cell not in ("", "inf", "nan") for row in rows for cell in row.values())


def test_all_policies_end_at_the_lowest_latency_and_the_oracle_is_there_first(made: dict[str, Path]) -> None:
    rows = table(made["against_sequential.csv"])
    for model in ("first", "second"):
        latency = {
            policy: [float(r["latency_ms"]) for r in rows if (r["model"], r["policy"]) == (model, policy)]
            for policy in ("dynatune", "sequential", "oracle")
        }
        assert len({round(values[-1], 4) for values in latency.values()}) == 1
        assert len({values[0] for values in latency.values()}) == 1
        assert sum(latency["oracle"]) <= min(map(sum, latency.values())) * 1.001
        assert all(low <= high for low, high in zip(latency["oracle"][1:], latency["oracle"], strict=False))


def test_regret_never_falls(made: dict[str, Path]) -> None:
    by_run: dict[tuple[str, str], list[float]] = {}
    for row in table(made["regret.csv"]):
        by_run.setdefault((row["model"], row["policy"]), []).append(float(row["regret_ms"]))
    assert len(by_run) == 10
    for values in by_run.values():
        assert values[0] == 0
        assert values == sorted(values)


def test_summary_agrees_with_the_replays(made: dict[str, Path], curves: Path) -> None:
    content = json.loads(made["dynatune.json"].read_text())
    study = replays.Study(read_all(curves), Path(), Path(), seeds=2, slot_trials=18)
    times = [one.time_to_within(0.01) for one in study.runs("first", "gradient")]
    seen = content["seconds_to_within"]["1%"]["first"]["gradient"]
    assert seen["median"] == pytest.approx(sum(times) / 2, abs=1e-3)
    assert (seen["low"], seen["high"]) == pytest.approx((min(times), max(times)), abs=1e-3)
    assert set(content["seconds_to_within"]["5%"]["second"]) == set(replays.LABELS)
    page = made["dynatune.md"].read_text()
    assert page.count("| yes |") + page.count("| **no** |") == len(content["bars"]) == 6


def test_the_tuners_table_is_of_the_latency_that_all_reach(made: dict[str, Path], curves: Path) -> None:
    content = json.loads(made["dynatune_tuners.json"].read_text())
    (by_label,) = content["seconds"].values()
    assert set(by_label) == set(against_chameleon.COMPARED)
    took = {pair: by_label[label][0] for label, pair in against_chameleon.COMPARED.items()}
    (recording,) = read_all(curves / "tuners" / "autotvm")
    assert 0 < took["autotvm", "sequential"] <= sum(c.seconds[-1] for c in recording.replayable()) + 1e-3
    assert took["chameleon", "sequential"] == pytest.approx(took["autotvm", "sequential"] / 2, abs=2e-3)
    assert took["adatune", "sequential"] == pytest.approx(took["autotvm", "sequential"] * 3 / 4, abs=2e-3)
    assert took["chameleon", "dynatune_paper"] == pytest.approx(took["autotvm", "dynatune_paper"] / 2, abs=2e-3)
    sooner = against_chameleon.times_sooner(content, "Chameleon", TUNERS["autotvm"][0])
    assert sooner == pytest.approx(2, rel=1e-2)
    assert TUNERS["autotvm"][0] in made["dynatune_tuners.md"].read_text()


def test_the_time_to_a_latency_is_the_first_slot_that_has_it() -> None:
    run = replays.Replay([0.0, 2.0, 5.0], [3.0, 2.0, 1.0], ["a", "a"], [0.0, 0.0], 1.0)
    assert [against_chameleon.time_to(run, latency) for latency in (3.5, 2.0, 1.0)] == [0.0, 2.0, 5.0]


def test_cost_and_gain_add_up(made: dict[str, Path]) -> None:
    rows = table(made["cost_and_gain.csv"])
    for model in ("first", "second"):
        for column in ("flops", "gain", "cost"):
            assert sum(float(row[column]) for row in rows if row["model"] == model) == pytest.approx(1, abs=1e-4)
    found = json.loads(made["dynatune_claims.json"].read_text())["challenges"]
    assert found["recordings"] == 2
    assert -1 <= found["rank correlation of FLOPs and gain"] <= 1


def test_the_shape_of_a_curve_by_hand() -> None:
    seconds = [float(n) for n in range(17)]
    # Speed 1, at trial 2 it is 2, from trial 10 on 4: a jump after the first slot of 8.
    curve = RecordedCurve("a", 1, 1, seconds, [1.0, 1.0, *[0.5] * 8, *[0.25] * 7])
    assert challenges.shape_of(curve) == (pytest.approx(1 / 3), 0.0, 1)


def test_rank_correlation_by_hand() -> None:
    assert challenges.rank_correlation([1, 2, 3], [10, 40, 90]) == pytest.approx(1)
    assert challenges.rank_correlation([1, 2, 3], [3, 1, 0]) == pytest.approx(-1)
    assert math.isnan(challenges.rank_correlation([1, 1], [1, 2]))


def test_how_uneven_a_space_is_by_hand(curves: Path) -> None:
    found = transformation_space.findings(json.loads((curves / "transformation_space.json").read_text()))
    assert found["programs"] == 8
    assert found["fastest over slowest"] == 3
    # Of the eight steps between measured neighbours: 1 to 2, 1.9 to 1, 1.2 to 3 and 3 to 1 are steep.
    assert found["steps of more than 20 %"] == pytest.approx(4 / 8)
    assert found["local maxima"] == 2


def test_recording_round_trip(curves: Path, tmp_path: Path) -> None:
    for recording in read_all(curves):
        path = recording.write(tmp_path)
        assert Recording.read(path) == recording
        assert path.read_bytes() == (curves / path.name).read_bytes()


def test_replayable_is_the_curve_before_compaction(curves: Path) -> None:
    recording = read_all(curves)[0]
    drawn = model_curves(np.random.default_rng(0), 4, 36, PEAK)
    played = recording.replayable()
    assert [curve.key for curve in played] == [*(curve.key for curve in drawn), "reshape"]
    for before, after in zip(drawn, played, strict=False):
        assert after.best == before.best
        assert after.seconds[-1] == pytest.approx(before.seconds[-1])


@pytest.mark.parametrize("content", [b"", b"not gzip", b"\x1f\x8b\x08"])
def test_damaged_recording_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x-0.json.gz").write_bytes(content)
    with pytest.raises(RecordingError, match=r"x-0\.json\.gz is no recording"):
        read_all(tmp_path)


def test_no_curves_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^error: .*benchmarks\.dynatune\.record"):
        main(["calibration", "--curves", str(tmp_path)])


def test_points_where_the_best_changes_and_at_the_end() -> None:
    def points(seconds: dict[int, list[float]]) -> tuple[tuple[float | None, ...], ...]:
        operator = OperatorHistory("op", "op", 1, 1)
        for number, ran in seconds.items():
            slot = Slot(number, "op", default=number == 0, search_seconds=2.0 if number else 0.0)
            operator.slots.append(slot)
            for position, value in enumerate(ran):
                operator.add(Trial("op", number, position, value, spent=1.5), slot)
        curve = curve_of(operator)
        return curve.trial, curve.seconds, curve.best

    failed = math.inf
    # Each trial takes 1.5 s; a slot's search counts with its first trial; the default program's time does not.
    slots = {0: [9.0], 3: [failed, 8.0, 8.5], 7: [5.0, 6.0]}
    assert points(slots) == ((0, 2, 4, 5), (0.0, 5.0, 10.0, 11.5), (9.0, 8.0, 5.0, 5.0))
    assert points({0: [9.0]}) == ((0,), (0.0,), (9.0,))
    assert points({0: [failed], 3: [failed, 8.0]}) == ((0, 2), (0.0, 5.0), (None, 8.0))


def test_a_name_that_is_no_figure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["regrets"])
    assert "there is no regrets: choose from against_sequential," in capsys.readouterr().err


def test_the_recorder_ends_an_operator_by_its_trials_alone() -> None:
    settings = make_settings(others={"most_trials": 3, "families": "none"})
    assert (settings.most_trials, settings.families) == (3, "none")
    assert Settings.from_json(settings.to_json()) == settings
    operator = OperatorHistory("op", "op", 1, 1)
    operator.add(Trial("op", 0, 0, 1.0), Slot(0, "op", default=True))
    for count in range(1, 4):
        operator.add(Trial("op", 1, 0, 1.0), Slot(1, "op"))
        assert operator.is_finished(1000, settings.most_trials) == (count == 3)
    with pytest.raises(SettingsError, match="no setting 'slot_trails'"):
        make_settings(others={"slot_trails": 3})


TIMES = {
    "one": {
        "dynatune": 10.0,
        "sequential": 20.0,
        "round_robin": 10.0,
        "gradient": 10.0,
        "steady_potential": 11.0,
        "oracle": 8.0,
    },
    "two": {
        "dynatune": 10.0,
        "sequential": 45.0,
        "round_robin": 14.4,
        "gradient": 8.1,
        "steady_potential": 12.1,
        "oracle": 10.0,
    },
    "tuned already": {
        "dynatune": 0.0,
        "sequential": 0.0,
        "round_robin": 0.0,
        "gradient": 0.0,
        "steady_potential": 0.0,
        "oracle": 0.0,
    },
}


@pytest.mark.parametrize(
    ("other", "expected"), [("sequential", 3.0), ("round_robin", 1.2), ("gradient", 0.9), ("oracle", math.sqrt(0.8))]
)
def test_speedup_is_the_geometric_mean_over_models(other: str, expected: float) -> None:
    assert summary.speedup(TIMES, "dynatune", other) == pytest.approx(expected)


def test_speedup_without_a_model_that_tells() -> None:
    assert math.isnan(summary.speedup({"tuned already": TIMES["tuned already"]}, "dynatune", "oracle"))


def test_bars() -> None:
    assert [bar.met for bar in summary.bars(TIMES, 0.9)] == [True, True, False, True, True, True]
    assert [bar.met for bar in summary.bars(TIMES, 0.98)] == [True, True, False, True, True, False]
    assert not summary.bars(TIMES, math.nan)[-1].met


def test_band_is_median_and_range_of_few_runs() -> None:
    assert band([[1.0, 5.0], [3.0, 4.0], [2.0, 9.0]]) == [(2.0, 1.0, 3.0), (5.0, 4.0, 9.0)]


def test_wilson_by_hand() -> None:
    low, high = calibration.wilson(8, 10)
    # From the published formula with z = 1.959964.
    assert (low, high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert calibration.wilson(10, 10)[1] == 1.0


def test_seed_decides_the_order() -> None:
    drawn = model_curves(np.random.default_rng(0), 6, 8, PEAK)
    orders = [[curve.key for curve in replays.shuffled(drawn, seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_a_variant_is_judged_on_models_it_was_not_chosen_on() -> None:
    worse, better = dict.fromkeys((*left_out.VARIANTS, left_out.BASE), 1.0), 0.5
    excess = {
        "CPU, a": {**worse, "no_belief": better},
        "CPU, b": {**worse, "no_belief": better},
        "GPU, c-float16": {**worse, "dynatune_per_slot": better / 4},
        "CPU, c": {**worse, "dynatune_per_slot": better / 4},
    }
    chosen = left_out.choose(excess)
    # Without c on either machine nothing speaks for the variant that is best on it alone.
    assert chosen["CPU, c"] == chosen["GPU, c-float16"] == "no_belief"
    assert chosen["CPU, a"] == chosen["CPU, b"] == "dynatune_per_slot"
    assert left_out.numbers(excess)["chosen on others"] == 1.0
    assert left_out.numbers(excess)["no_belief, CPU"] == pytest.approx(2 ** (2 / 3))


def test_the_mean_excess_is_weighted_by_time() -> None:
    run = replays.Replay([0.0, 1.0, 4.0], [math.inf, math.e, 1.0], ["a", "a"], [0.0, 0.0], 1.0)
    assert run.mean_excess == pytest.approx(1.0)
    run = replays.Replay([0.0, 1.0, 4.0], [math.e**2, math.e, 1.0], ["a", "a"], [0.0, 0.0], 1.0)
    assert run.mean_excess == pytest.approx(5 / 4)


def test_no_belief_weighs_latency_against_slots() -> None:
    heavy = OperatorState("heavy", 3, 100, [2.0, 1.0], (1, 1))
    light = OperatorState("light", 1, 100, [1.4])
    assert replays.NoBelief().pick([heavy, light], 2) == "light"  # 3 / 3 < 1.4 / 1
    assert replays.NoBelief().pick([light, OperatorState("cold", 1, 1, [math.inf])], 2) == "cold"


@pytest.mark.parametrize("name", replays.LABELS)
def test_every_label_is_a_policy(name: str) -> None:
    curves = model_curves(np.random.default_rng(0), 3, 8, PEAK)
    states = [OperatorState(curve.key, curve.weight, curve.flops, curve.best[:1]) for curve in curves]
    picked = replays.policy(name, curves, PEAK, 0, 4).pick(states, 0)
    assert picked in {curve.key for curve in curves}


class TestNoBelief(SchedulerSuite):
    def make(self, context: Context) -> replays.NoBelief:
        return replays.NoBelief()
