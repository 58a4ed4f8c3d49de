"""The command that is shown leads to the same settings again."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from slipstream.cli.options import parse_constants, parse_shapes
from slipstream.cli.tune import tune_command
from slipstream.report.command import reproduce
from slipstream.session.budget import Budget
from slipstream.session.settings import Settings, make_settings


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"effort": "quick"},
        {"effort": "max", "seed": 7, "deterministic": True},
        {"preset": "metaschedule"},
        {"preset": "metaschedule", "search": "diffusion"},
        {"scheduler": "gradient", "cost": "metaschedule", "effort": "quick"},
    ],
)
def test_the_command_makes_the_same_settings(chosen: dict[str, Any]) -> None:
    settings = make_settings(**chosen)
    options = {
        "settings": settings.to_json(),
        "target": "cpu",
        "threads": 2,
        "rpc": [None, None],
        "source": "/a b/model.onnx",
        "load": {"shapes": {"x": [1, 3, 8, 8]}, "constants": {"rate": 16000}},
    }
    text = reproduce(options, Budget(90.0, 500, 0.02).to_json())
    words = shlex.split(text)
    assert words[:2] == ["slipstream", "tune"]
    given = tune_command.make_context("tune", words[2:]).params
    assert given["model"] == "/a b/model.onnx"
    assert Budget.of(given["budget"], given["trials"], given["until_latency"]) == Budget(90.0, 500, 0.02)
    assert (parse_shapes(given["shapes"]), parse_constants(given["constants"])) == (
        {"x": [1, 3, 8, 8]},
        {"rate": 16000},
    )
    names = ("preset", "effort", "scheduler", "search", "cost", "seed", "deterministic")
    assert make_settings(**{name: given[name] for name in names}) == settings
    assert given["threads"] == 2


def test_what_the_command_line_cannot_say_is_python() -> None:
    options = {"settings": Settings(slot_trials=5, seed=3).to_json(), "source": "m.onnx", "threads": 4}
    text = reproduce(options, Budget(None, 100).to_json())
    given: dict[str, Any] = {}
    exec(text, {"slipstream": type("api", (), {"tune": staticmethod(lambda *a, **k: given.update(k, args=a))})})
    assert given == {"args": ("m.onnx", "DIR"), "trials": 100, "threads": 4, "seed": 3, "settings": {"slot_trials": 5}}
    assert reproduce({**options, "source": "memory"}, {}).startswith("slipstream.tune(model, ")
