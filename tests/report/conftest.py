"""A session tuned by the real loop, and a real browser where there is one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import slipstream
from slipstream.session.events import Event, Snapshot
from tests.conftest import Build
from tests.report.browser import Browser, run_browser
from tests.session.synthetic import SyntheticMeasurer


@pytest.fixture(scope="session")
def tuned(made_once: Callable[[str, Build], Path]) -> tuple[slipstream.TuningResult, list[Event]]:
    """zoo:tiny_cnn, tuned, compiled and verified; only the times of its programs are made up, so that some fail."""

    def tune(folder: Path) -> None:
        events: list[Event] = []

        def watch(event: Event, snapshot: Snapshot) -> None:
            events.append(event)

        result = slipstream.tune(
            "zoo:tiny_cnn",
            folder / "session",
            trials=40,
            effort="quick",
            callbacks=[watch],
            measurer=SyntheticMeasurer(),
        )
        (folder / "result.pickle").write_bytes(pickle.dumps((result, events)))

    content = (made_once("tuned", tune) / "result.pickle").read_bytes()
    made: tuple[slipstream.TuningResult, list[Event]] = pickle.loads(content)
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole run: while it is open, no other test of this thread could use asyncio."""
    with run_browser() as running:
        yield running


@pytest.fixture(scope="session")
def large(made_once: Callable[[str, Build], Path]) -> Path:
    """A session of 1,000 operators and 28,000 trials."""
    from tests.report.made_up import made_up_session

    return made_once("large", lambda path: made_up_session(path, operators=1000, slots=3_375))
