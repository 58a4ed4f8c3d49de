"""The structure says what the session said while it ran, and what its result says."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.belief import Belief
from slipstream.report.view import MOST_DOTS, SessionView, session_structure
from slipstream.session.benchmark import FILE_NAME, _manifest_digest
from slipstream.session.directory import SessionDirectory, open_store
from slipstream.session.settings import Settings
from slipstream.session.state_names import PEAK_FLOPS
from slipstream.session.status import snapshot_of
from slipstream.store import Store
from tests.report.made_up import BEGAN, made_up_session, made_up_trial, play


@pytest.fixture(scope="module")
def structure(tuned: Any) -> dict[str, Any]:
    return session_structure(tuned[0].directory)


def test_headline_and_operators_are_those_of_the_result(tuned: Any, structure: dict[str, Any]) -> None:
    result = tuned[0]
    head = structure["headline"]
    assert head["start"] == pytest.approx(result.start_latency)
    assert head["latency"] == pytest.approx(result.latency)
    assert head["end_to_end"] == result.end_to_end
    assert head["trials"] == result.trials == 40
    # The result leaves out an operator of which nothing could be measured.
    timed = [o for o in structure["operators"] if o["best"] is not None]
    assert {o["name"]: (o["start"], o["best"], o["trials"], o["weight"]) for o in timed} == {
        o.name: (o.start, o.best, o.trials, o.weight) for o in result.operators
    }
    assert sum(kind["count"] for kind in structure["failures"]) == sum(result.failures.values()) > 0
    assert structure["session"]["state"] == "finished"


def test_it_agrees_with_status(tuned: Any, structure: dict[str, Any]) -> None:
    folder = SessionDirectory.read(tuned[0].directory)
    with open_store(folder, read_only=True) as store:
        snapshot = snapshot_of(store, folder.session)
    assert structure["headline"]["start"] == pytest.approx(snapshot.start_latency)
    assert structure["headline"]["latency"] == pytest.approx(snapshot.latency)
    assert [o["failures"] for o in structure["operators"]] == [row.failures for row in snapshot.operators]


def test_slots_gained_what_the_session_said(tuned: Any, structure: dict[str, Any]) -> None:
    said = [e.data for e in tuned[1] if e.kind == "slot_done"]
    keys = [o["key"] for o in structure["operators"]]
    shown = {number: (keys[n], trials, gain) for n, _, _, trials, gain, number in structure["slots"]}
    assert len(said) > 3
    for slot in said:
        key, trials, gain = shown[slot["slot"]]
        assert (key, trials) == (slot["operator"], slot["trials"])
        assert gain == pytest.approx(slot["gain"], rel=1e-4, abs=1e-12)


def test_the_curve_is_the_session_s(tuned: Any, structure: dict[str, Any]) -> None:
    improved = [e.data["latency"] for e in tuned[1] if e.kind == "improved"]
    curve = [latency for _, latency, _ in structure["curve"]]
    assert curve[0] == pytest.approx(tuned[0].start_latency, rel=1e-4)
    assert curve[1:] == pytest.approx(improved, rel=1e-4)
    times = [at for at, _, _ in structure["curve"]]
    assert times == sorted(times)
    assert times[-1] <= structure["session"]["elapsed"]


def test_times_are_within_the_session_and_slots_do_not_overlap(structure: dict[str, Any]) -> None:
    ends = 0.0
    for _, start, end, *_ in structure["slots"]:
        assert ends <= start <= end <= structure["session"]["elapsed"] + 1e-3
        ends = end
    assert sum(structure["split"].values()) == pytest.approx(structure["session"]["elapsed"], rel=0.05)


def test_a_band_is_the_forecast_the_scheduler_made(tuned: Any, structure: dict[str, Any]) -> None:
    """An operator without relatives, at its first slot: the belief asked directly says the same."""
    followers = {m["operator"] for family in structure["families"] for m in family["members"]}
    folder = SessionDirectory.read(tuned[0].directory)
    with open_store(folder, read_only=True) as store:
        saved = store.state(folder.session, PEAK_FLOPS)
        settings = Settings.from_json(store.session(folder.session).options["settings"])
        assert saved is not None
        belief = Belief(peak_flops=float(saved[1]), slot_trials=settings.slot_trials, seed=settings.seed)
        checked = 0
        for n, operator in enumerate(structure["operators"]):
            medians = [t.median for t in store.trials(operator=operator["key"], session=folder.session)]
            best = np.minimum.accumulate(medians)
            for trial, low, high, mean, _ in operator["bands"]:
                assert 0 < low <= mean <= high
                assert high == pytest.approx(best[trial], rel=1e-4)  # nothing is ever expected to become worse
                if n not in followers:
                    made = belief.forecast(operator["key"], best[: trial + 1], operator["flops"])
                    assert low == pytest.approx(best[trial] * made.best / made.high, rel=1e-3)
                    checked += 1
    assert checked


def test_families_show_what_was_kept(structure: dict[str, Any]) -> None:
    assert structure["families"]
    for family in structure["families"]:
        prior, *others = family["members"]
        assert prior["operator"] == family["prior"]
        for member in others:
            for mine, theirs, how in zip(
                member["values"], prior["values"], member["equal_to_prior"] or [], strict=False
            ):
                assert how in ("all", "inner", "fixed", "")
                if how == "all":
                    assert mine == theirs
                if how == "inner":
                    assert mine.split(" × ")[1:] == theirs.split(" × ")[1:]
                    assert mine != theirs


def test_it_needs_no_tvm_and_leaves_the_store_alone(tuned: Any) -> None:
    before = (tuned[0].directory / "store.db").read_bytes()
    script = (
        "import sys; from slipstream.report.view import session_structure as s; from slipstream.report import page, "
        f"server; page.report_page(s({str(tuned[0].directory)!r})); print('tvm' in sys.modules, 'onnx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    assert (tuned[0].directory / "store.db").read_bytes() == before


def test_a_benchmark_counts_until_the_model_is_compiled_anew(tuned: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tuned[0].directory, copy)
    kept = {"model": _manifest_digest(copy / "model"), "measured_at": 1.0, "threads": 2, "timings": [], "ratios": []}
    (copy / FILE_NAME).write_text(json.dumps(kept))
    assert session_structure(copy)["headline"]["bench"]["threads"] == 2
    (copy / "model" / "manifest.json").write_text("{}")
    assert session_structure(copy)["headline"]["bench"] is None
    (copy / FILE_NAME).write_text("not JSON")
    assert session_structure(copy)["headline"]["bench"] is None


@pytest.mark.parametrize("slots", [0, 1, 30])
@pytest.mark.parametrize("operators", [0, 1, 4])
@pytest.mark.parametrize("status", ["running", "finished"])
def test_odd_sessions_are_plain_json(operators: int, slots: int, status: str, tmp_path: Path) -> None:
    slots = slots if operators else 0
    folder = made_up_session(tmp_path / "s", operators=operators, slots=slots, status=status)
    structure = session_structure(folder.path)
    assert json.loads(json.dumps(structure, allow_nan=False)) == structure
    assert len(structure["operators"]) == operators
    assert len(structure["slots"]) == slots
    assert structure["headline"]["trials"] == operators + 8 * slots
    assert bool(structure["curve"]) == bool(operators)
    # Nobody works on it: a session that says it is running was killed.
    assert structure["session"]["state"] == ("killed" if status == "running" else "finished")


def test_reading_on_is_reading_anew(tmp_path: Path) -> None:
    folder = made_up_session(tmp_path / "s", operators=3, slots=0, status="running")
    view = SessionView(folder)
    with Store.open(folder.store) as store:
        keys = list(store.session_operators(folder.session))
        hardware = store.session(folder.session).hardware
        for step in range(3):
            slots = range(5 * step, 5 * step + 5)
            play(store, folder.session, hardware, keys, slots, np.random.default_rng(step))
            assert view.structure(10_000) == SessionView(folder).structure(10_000)
    assert len(view.structure()["slots"]) == 15


def test_what_the_store_knew_before_is_a_step_of_the_curve(tmp_path: Path) -> None:
    """A program of an earlier session is measured with the default, and may be better at once."""
    folder = made_up_session(tmp_path / "s", operators=2, slots=0)
    with Store.open(folder.store) as store:
        hardware, keys = store.session(folder.session).hardware, list(store.session_operators(folder.session))
        store.append_trial(made_up_trial(folder.session, hardware, keys[0], 0, 1, 4e-4, BEGAN + 4.5))
    structure = session_structure(folder.path)
    assert [point[1] for point in structure["curve"]] == pytest.approx([3e-3, 2.4e-3])
    assert structure["headline"]["start"] == pytest.approx(3e-3)
    assert structure["headline"]["latency"] == pytest.approx(2.4e-3)


def test_the_split_adds_up_where_activities_go_on_side_by_side(tmp_path: Path) -> None:
    """Sixteen programs timed at once take the time of one; a scheduler that works beside them does not add to it."""
    folder = made_up_session(tmp_path / "s", operators=1, slots=0)
    with Store.open(folder.store) as store:
        hardware, (key,) = store.session(folder.session).hardware, store.session_operators(folder.session)
        for position in range(1, 17):
            store.append_trial(made_up_trial(folder.session, hardware, key, 0, position, 1e-3, BEGAN + 4.5))
    assert session_structure(folder.path)["split"]["run"] == pytest.approx(2 * 0.05)  # the default program, and these
    with Store.open(folder.store) as store:
        store.update_session(folder.session, result={"split": {"compile": 1.0, "schedule": 4.0, "train": 3.0}})
    structure = session_structure(folder.path)
    assert sum(structure["split"].values()) == pytest.approx(structure["session"]["elapsed"], abs=0.01)
    assert structure["split"]["schedule"] == pytest.approx(4 * structure["split"]["compile"], abs=0.01)


def test_forecasts_that_were_left_out_come_with_the_next_reading(tmp_path: Path) -> None:
    view = SessionView(made_up_session(tmp_path / "s", operators=2, slots=10))
    counts = []
    for _ in range(8):
        structure = view.structure(most_forecasts=2)
        counts.append(sum(len(o["bands"]) for o in structure["operators"]))
        if not view.unfinished:
            break
    assert counts[0] == 2
    assert counts[-1] == 10
    assert counts == sorted(counts)


def test_many_trials_stay_small(large: Path) -> None:
    structure = session_structure(large)
    assert structure["headline"]["trials"] == 28_000
    assert len(json.dumps(structure)) < 2_500_000
    assert sum(len(o["dots"]) for o in structure["operators"]) <= MOST_DOTS < structure["headline"]["trials"]
    with open_store(SessionDirectory.read(large), read_only=True) as store:
        rows = store.database.rows(
            "SELECT key, min(median), count(*) FROM trial JOIN operator ON operator.id = operator GROUP BY key"
        )
    exact = {key: (best, count) for key, best, count in rows}
    assert {o["key"]: (o["best"], o["trials"]) for o in structure["operators"]} == exact
    assert structure["headline"]["latency"] == pytest.approx(
        math.fsum(o["weight"] * exact[o["key"]][0] for o in structure["operators"])
    )
