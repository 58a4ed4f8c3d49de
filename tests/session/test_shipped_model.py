"""What a session says about the model it has compiled: in the manifest, the result, the status and the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import slipstream
from slipstream.cli import guard, main
from slipstream.frontends import Model
from slipstream.frontends.inputs import Array
from slipstream.graph import prepare
from slipstream.session.events import Event, Snapshot
from tests.conftest import small_model
from tests.session.synthetic import SyntheticMeasurer

QUICK: dict[str, Any] = {"effort": "quick", "search": "random"}


@cache
def model() -> Model:
    return slipstream.load_model(small_model())


class Messages:
    """The texts of all messages."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        if event.kind == "message":
            self.texts.append(str(event.data["text"]))


def _tune(output: Path, reference: Any, messages: Messages) -> Any:
    return slipstream.tune(
        replace(model(), reference=reference),
        output,
        trials=8,
        measurer=SyntheticMeasurer(),
        callbacks=[messages],
        **QUICK,
    )


class WrongAtFirst:
    """A reference that contradicts the first model it is compared with, and none after that."""

    name = "wrong at first"

    def __init__(self) -> None:
        self.asked = 0

    def outputs(self, feeds: Sequence[dict[str, Array]]) -> list[list[Array]]:
        self.asked += 1
        right = model().reference.outputs(feeds)
        return [[output + 1000 for output in outputs] for outputs in right] if self.asked == 1 else right


def test_a_default_model_in_place_of_a_wrong_tuned_one_is_called_so_everywhere(tmp_path: Path) -> None:
    messages = Messages()
    result = _tune(tmp_path / "s", WrongAtFirst(), messages)
    manifest = slipstream.load(tmp_path / "s").manifest
    assert manifest.verification is not None
    assert manifest.tuned == {}
    said = "wrong and the default one was compiled instead"
    assert any(said in text for text in messages.texts)
    assert said in result.fallback
    assert said in str(result)
    status = CliRunner().invoke(main, ["status", str(tmp_path / "s"), "--json"])
    assert said in json.loads(status.stdout)["fallback"]
    assert "wrong and the default" in CliRunner().invoke(main, ["status", str(tmp_path / "s")]).stdout
    assert CliRunner().invoke(main, ["report", str(tmp_path / "s"), "-o", str(tmp_path / "r.html")]).exit_code == 0
    assert said in (tmp_path / "r.html").read_text()


def test_pruning_the_store_changes_neither_status_nor_report(tmp_path: Path) -> None:
    directory = str(tmp_path / "s")
    result = _tune(tmp_path / "s", model().reference, Messages())
    assert slipstream.load(directory).manifest.tuned["trials"] == result.trials
    assert result.fallback == ""

    def looked_at() -> tuple[str, str]:
        page = tmp_path / "report.html"
        assert CliRunner().invoke(main, ["report", directory, "-o", str(page)]).exit_code == 0
        return CliRunner().invoke(main, ["status", directory, "--json"]).stdout, page.read_text()

    before = looked_at()
    pruned = CliRunner().invoke(main, ["store", "prune", directory, "--keep", "1", "--yes"])
    assert pruned.exit_code == 0, pruned.output
    assert looked_at() == before


def test_a_pass_that_was_left_out_is_a_message_of_tune_and_a_warning_of_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("TVM cannot\nconvert this")

    failing = [replace(step, apply=fail) if step.name == "layout" else step for step in prepare.PASSES]
    monkeypatch.setattr(prepare, "PASSES", tuple(failing))
    messages = Messages()
    _tune(tmp_path / "s", model().reference, messages)
    said = "the pass 'layout' was left out, since TVM failed on it (convert this)"
    assert [text for text in messages.texts if said in text]
    # In this process, where the pass fails; a fork would inherit TVM's locks without its threads.
    monkeypatch.setattr(guard, "run_guarded", lambda work, progress: work(progress))
    compiled = CliRunner().invoke(main, ["compile", "zoo:tiny_cnn", "-o", str(tmp_path / "c")])
    assert compiled.exit_code == 0, compiled.output
    assert f"warning: {said}" in compiled.stderr
