"""Progress from Python: a line in logs and on terminals, a display in notebooks, nothing in plain scripts."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from slipstream.session.events import Event, Left, OperatorProgress, Remaining, Snapshot
from slipstream.session.notebook import NotebookProgress, picture
from slipstream.session.progress_line import ProgressLines, ProgressOnTerminal, progress_line
from slipstream.session.show_progress import show_progress


def snapshot(**changes: Any) -> Snapshot:
    rows = [OperatorProgress("a", "conv2d <3x3> & add", 2, 2e-3, 1e-3, 9), OperatorProgress("b", "new", 1, 1.0, 1.0)]
    settings: dict[str, Any] = {
        "session": "s",
        "model": "net",
        "target": "cpu",
        "phase": "tune",
        "elapsed": 133.0,
        "remaining": Remaining(seconds=167.0, fraction_used=0.44),
        "start_latency": 40e-3,
        "latency": 28.41e-3,
        "curve": [(1.0, 40e-3), (60.0, 28.41e-3)],
        "operators": rows,
        "trials": 312,
        "left": Left(0.01, 0.042, 360.0),
        **changes,
    }
    return Snapshot(**settings)


def test_the_line() -> None:
    expected = " 44%|████▍     | 2:13<2:47  28.41 ms, 1.41x as fast, 312 trials, at most 4 % more"
    assert progress_line(snapshot()) == expected
    early = snapshot(phase="defaults", latency=float("inf"), left=None, remaining=Remaining(), trials=1)
    assert progress_line(early) == "2:13  defaults, 1 trial"
    done = snapshot(phase="done", left=Left(0.0, 0.0, 0.0))
    assert progress_line(done) == "2:13  28.41 ms, 1.41x as fast, 312 trials, nothing more likely"


def test_the_line_of_several_models() -> None:
    several = snapshot(calls={"net <1>": {"a": 2}, "other": {"b": 1}}, weights={"net <1>": 3, "other": 1}, left=None)
    expected = " 44%|████▍     | 2:13<2:47  28.41 ms (net <1> 2.00 ms, other 1.00 s), 1.41x as fast, 312 trials"
    assert progress_line(several) == expected
    assert "<div>net &lt;1&gt;: 2.00 ms, 2.00x</div>" in picture(several, [])


def test_a_log_gets_few_lines_and_all_that_matters() -> None:
    lines: list[str] = []
    view = ProgressLines(lines.append)
    view(Event("started", 0.0), snapshot(phase="prepare", elapsed=0.0))
    for second in range(4000):
        view(Event("trial", float(second)), snapshot(elapsed=float(second)))
    view(Event("message", 4000.0, {"text": "something\nodd"}), snapshot(elapsed=4000.0))
    view(Event("phase", 4000.0), snapshot(phase="compile", elapsed=4000.0))
    view(Event("phase", 4001.0), snapshot(phase="compile", elapsed=4001.0))
    view(Event("finished", 4002.0), snapshot(phase="done", elapsed=4002.0))
    assert lines[0].startswith("net for cpu: ")
    assert lines[-3] == "something odd"
    assert "compile" in lines[-2]
    assert all(line.isprintable() for line in lines)
    # Ten minutes of one every 10 s, fifty of one a minute, then one every five.
    assert len(lines) - 4 == pytest.approx(60 + 50 + 2, abs=2)


def test_on_a_terminal_one_line_changes_in_place() -> None:
    output = io.StringIO()
    view = ProgressOnTerminal(output)
    for second in (0.0, 0.01, 0.02, 1.0):
        view(Event("trial", second), snapshot(elapsed=second))
    view(Event("message", 1.0, {"text": "a warning"}), snapshot(elapsed=1.0))
    view.close()
    drawn = output.getvalue().split("\r")[1:]
    assert [("a warning" in text, text.endswith("\n")) for text in drawn] == [
        (False, False), (False, False), (True, True), (False, True),
    ]  # fmt: skip


def test_the_picture_is_well_formed_and_names_are_escaped() -> None:
    shown = picture(snapshot(), ["<script>"])
    root = ElementTree.fromstring(f"<body>{shown}</body>".replace("&middot;", "·"))
    assert root.find(".//script") is None
    assert "conv2d <3x3> & add" in [cell.text for cell in root.iter("td")]
    assert "at most 4 % more is likely, another 6 minutes" in "".join(root.itertext())
    (curve,) = root.iter("polyline")
    assert re.fullmatch(r"([\d.]+,[\d.]+ ?)+", curve.attrib["points"])
    assert next(root.iter("progress")).get("value") == "0.440"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    """What a notebook's front end is sent; IPython itself is not needed to run the tests."""
    sent: list[tuple[str, dict[str, str]]] = []

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        sent.append(("new", bundle))
        return SimpleNamespace(update=lambda bundle, raw: sent.append(("update", bundle)))

    ipython, shown = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    shown.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return sent


def test_a_notebook_has_one_display_that_is_updated(kernel: list[tuple[str, dict[str, str]]]) -> None:
    with show_progress(None) as (view,):
        for elapsed in range(100):
            view(Event("trial", float(elapsed)), snapshot(elapsed=float(elapsed)))
        view(Event("finished", 100.0), snapshot(phase="done", elapsed=100.0))
    assert isinstance(view, NotebookProgress)
    kinds = [kind for kind, _ in kernel]
    assert kinds[0] == "new"
    assert 2 <= len(kinds) < 20
    assert set(kinds[1:]) == {"update"}
    assert kernel[-1][1]["text/plain"] == progress_line(snapshot(phase="done", elapsed=100.0))


@pytest.mark.usefixtures("kernel")
def test_a_notebook_can_be_quiet() -> None:
    with show_progress(False) as views:
        assert views == []


def watchers(wanted: bool | None) -> list[str]:
    with show_progress(wanted) as views:
        return [type(view).__name__ for view in views]


def test_a_script_is_quiet_unless_it_asks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert watchers(None) == watchers(False) == []
    assert watchers(True) == ["ProgressLines"]
    with show_progress(True) as (view,):
        view(Event("started", 0.0), snapshot())
    assert capsys.readouterr().err.startswith("net for cpu: ")
    terminal: Callable[[], bool] = lambda: True  # noqa: E731
    monkeypatch.setattr(sys.stderr, "isatty", terminal, raising=False)
    assert watchers(True) == ["ProgressOnTerminal"]
