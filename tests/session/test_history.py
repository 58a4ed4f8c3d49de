"""One history: the loop, `status`, the report, JSON and the benchmarks count the same."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ended_session import EndedSession
from slipstream.cli.tune_json import _figures, finite
from slipstream.report.view import session_structure
from slipstream.session.budget import Budget
from slipstream.session.directory import SessionDirectory, open_store
from slipstream.session.events import Snapshot, trials_and_slots
from slipstream.session.status import snapshot_of
from tests.session.synthetic import play
from tests.session.test_in_flight import LastFirst

QUICK: dict[str, Any] = {"slot_trials": 4, "patience_trials": 1000, "search": "random"}


def _plain(path: Path) -> Any:
    return play(path, Budget(trials=20), **QUICK)[0]


def _several_in_flight(path: Path) -> Any:
    return play(path, Budget(trials=26), LastFirst(), in_flight=3, **QUICK)[0]


def _killed_and_resumed(path: Path) -> Any:
    """It ends without a word in the middle of a slot, twice; the second time with several slots in flight."""

    class KilledError(Exception):
        pass

    for count in (10, 9):
        measurer = LastFirst()

        def die(event: Any, snapshot: Snapshot, measurer: Any = measurer, count: int = count) -> None:
            if len(measurer.measured) >= count:
                raise KilledError

        with pytest.raises(KilledError):
            play(path, Budget(trials=30), measurer, watcher=die, in_flight=3, **QUICK)
    return play(path, Budget(trials=30), LastFirst())[0]


@pytest.mark.parametrize("played", [_plain, _several_in_flight, _killed_and_resumed])
def test_all_count_the_same(played: Any, tmp_path: Path) -> None:
    session = played(tmp_path / "store.db")
    folder = SessionDirectory(tmp_path, tmp_path / "store.db", session.session)
    folder.write()
    with open_store(folder, read_only=True) as store:
        status = snapshot_of(store, session.session)
    report, live, ended = session_structure(tmp_path), session.snapshot, EndedSession(tmp_path)
    assert trials_and_slots(status) == trials_and_slots(live)
    head, figures = report["headline"], _figures(live)
    for name in ("trials", "default_trials", "slots"):
        assert head[name] == figures[name] == _figures(status)[name] == getattr(live, name), name
    assert live.slots == len(report["slots"]) == sum(o["slots"] for o in report["operators"])
    assert live.trials == live.default_trials + sum(slot[3] for slot in report["slots"])
    assert head["latency"] == status.latency == live.latency == ended.history.latency
    assert head["start"] == status.start_latency == live.start_latency
    assert (ended.history.trials, ended.history.given_slots) == (live.trials, live.slots)
    for mine, theirs, shown in zip(status.operators, live.operators, report["operators"], strict=True):
        assert mine == theirs
        assert (mine.trials, mine.failures) == (shown["trials"], shown["failures"])
        assert finite(mine.best) == shown["best"]
    assert sum(kind["count"] for kind in report["failures"]) == sum(live.failures.values())


def test_slots_in_flight_overlap_in_the_report(tmp_path: Path) -> None:
    """Each has at most as many others beside it as there may be, and lasts as long as its trials did."""
    session = _several_in_flight(tmp_path / "store.db")
    SessionDirectory(tmp_path, tmp_path / "store.db", session.session).write()
    spans = [(start, end) for _, start, end, *_ in session_structure(tmp_path)["slots"]]
    assert any(start < end for (_, end), (start, _) in pairwise(spans))
    for start, _ in spans:
        assert sum(other <= start < end for other, end in spans) <= 3


def test_history_needs_neither_numpy_nor_tvm() -> None:
    script = "import sys; import slipstream.session.history; print('numpy' in sys.modules, 'tvm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
