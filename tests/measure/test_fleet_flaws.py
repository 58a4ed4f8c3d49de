"""Devices of a fleet that are to be set aside: the real engine and gateway, with nodes that are simulated."""

from __future__ import annotations

import json
import logging
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import slipstream
from benchmarks.fleet_nodes import ENVIRONMENT
from slipstream.machine.target import resolve_target
from slipstream.measure import Measurement, fleet_measurer, reference_text
from slipstream.measure.fleet import connection
from slipstream.store import Store, StoreFullError, TrialRecord
from tests.measure import misbehaving, simulated_fleet
from tests.measure.simulated_fleet import FLAWED_SECONDS
from tests.measure.test_fleet import CONFIG, good_programs
from tests.measure.test_fleet_faults import trials_of


def simulate(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fleets from now on have three devices, the first with this flaw."""
    times = {"builders": 6, "devices": 3, "build": 0.01, "run": 0.02, "allocate": 0.0, "flaw": flaw}
    monkeypatch.setenv(ENVIRONMENT, json.dumps(times))
    monkeypatch.setattr(connection, "GATEWAY", simulated_fleet.__name__)


def measured(flaw: str, monkeypatch: pytest.MonkeyPatch) -> list[Measurement]:
    """Sixteen programs on three devices, in the order in which their results came."""
    simulate(flaw, monkeypatch)
    references = {misbehaving.KEY: reference_text(misbehaving.good(1))}
    with fleet_measurer("", resolve_target(), references, CONFIG) as measurer:
        return list(measurer.measure(good_programs(*(2**n for n in range(16)))))


def test_a_device_that_computes_wrongly_is_set_aside_and_no_program_suffers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        results = measured("wrong", monkeypatch)
    assert [m.failure for m in results] == [None] * 16
    aside = [record.message for record in caplog.records if "set aside" in record.message]
    assert aside == ["device 10.0.0.0/00000000/cpu is set aside: it computes wrongly"]


def test_a_device_that_drifts_is_set_aside(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        results = measured("slow", monkeypatch)
    assert [m.failure for m in results] == [None] * 16
    assert any("takes 2.0 times as long as usual" in record.message for record in caplog.records)
    assert FLAWED_SECONDS in {m.median for m in results}
    assert FLAWED_SECONDS not in {m.median for m in results[-3:]}


@pytest.mark.slow
def test_a_full_disk_ends_in_one_line_and_a_session_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    simulate("", monkeypatch)
    append, written = Store.append_trial, count(1)

    def fill_the_disk(self: Store, trial: TrialRecord) -> int:
        if next(written) == 12:
            (pages,) = self.database.rows("PRAGMA page_count")[0]
            self.database.execute(f"PRAGMA max_page_count = {pages}")
        return append(self, trial)

    def measurer(context: Any) -> Any:
        return fleet_measurer("", context.target, context.references)

    monkeypatch.setattr(Store, "append_trial", fill_the_disk)
    out = tmp_path / "out"
    with pytest.raises(StoreFullError, match=r"^no room left for [^\n]*: free some disk space"):
        slipstream.tune("zoo:tiny_cnn", out, trials=400, effort="quick", measurer=measurer)
    before = {(trial.slot, trial.position) for trial in trials_of(out)}
    assert before
    monkeypatch.undo()
    simulate("", monkeypatch)
    slipstream.resume(out, trials=16, measurer=measurer)
    after = [(trial.slot, trial.position) for trial in trials_of(out)]
    assert before < set(after)
    assert len(set(after)) == len(after)
