"""docs/tuning.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.tune_json import _figures
from slipstream.measure.types import FailureKind
from slipstream.session.budget import Budget
from slipstream.session.events import Event, Snapshot
from slipstream.session.settings import EFFORTS, PRESETS, Settings
from tests.session.synthetic import SyntheticMeasurer, play

TEXT = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()


def table(header: str) -> list[list[str]]:
    """The rows under the header row that starts so, without code marks."""
    lines = TEXT.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {header}"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return rows


def shown(values: Any) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def test_the_defaults() -> None:
    assert dict(table("setting | default")) == shown(Settings().to_json())  # type: ignore[arg-type]


def test_the_efforts() -> None:
    names = re.findall(r"`(\w+)`", next(line for line in TEXT.splitlines() if line.startswith("| effort")))
    documented = {row[0]: dict(zip(names, row[1:], strict=True)) for row in table("effort")}
    assert documented == {effort: shown(values) for effort, values in EFFORTS.items()}
    assert {name: getattr(Settings(), name) for name in names} == EFFORTS["normal"]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_presets(preset: str) -> None:
    assert dict(table(f"setting | preset `{preset}`")) == shown(PRESETS[preset])  # type: ignore[arg-type]


def documented_events() -> dict[str, set[str]]:
    return {row[0]: set(row[1].split(", ")) for row in table("event | data")}


def test_the_events_of_the_loop(tmp_path: Path) -> None:
    seen: dict[str, set[str]] = {}
    figures: list[dict[str, Any]] = []

    def watch(event: Event, snapshot: Snapshot) -> None:
        seen.setdefault(event.kind, set()).update(event.data)
        figures.append(_figures(snapshot))

    play(tmp_path / "a", Budget(trials=48), watcher=watch, search="random")
    play(tmp_path / "b", Budget(), SyntheticMeasurer(lambda _: FailureKind.CRASH), watcher=watch)
    documented = documented_events()
    assert set(seen) == {"phase", "slot", "trial", "improved", "slot_done", "message"}
    assert {kind: documented[kind] - {"stage"} for kind in seen} == seen
    (listed,) = re.findall(r"`snapshot` has the figures of the whole: (.*?)\. `failures`", TEXT, re.DOTALL)
    assert re.findall(r"`(\w+)`", listed) == list(figures[-1])
