"""The command that is shown leads to the same settings again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.cli.model_arguments import read_models
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
        {"search": "chameleon", "evaluation": "adatune"},
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
    assert given["models"] == ("/a b/model.onnx",)
    assert Budget.of(given["budget"], given["trials"], given["until_latency"]) == Budget(90.0, 500, 0.02)
    assert (parse_shapes(given["shapes"]), parse_constants(given["constants"])) == (
        {"x": [1, 3, 8, 8]},
        {"rate": 16000},
    )
    names = ("preset", "effort", "scheduler", "search", "cost", "evaluation", "seed", "deterministic")
    assert make_settings(**{name: given[name] for name in names}) == settings
    assert given["threads"] == 2


def test_inputs_from_several_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", ids=np.zeros(2), mask=np.zeros(2))
    np.savez(tmp_path / "b.npz", ids=np.ones(2))
    files = [str(tmp_path / name) for name in ("a.npz", "b.npz")]
    alone = read_models(["bert.onnx"], [], (), (), files)[1]["input_data"]
    assert {name: array.tolist() for name, array in alone.items()} == {"ids": [1, 1], "mask": [0, 0]}
    of_each = [f"bert:{file}" for file in files] + [f"gpt:{files[1]}"]
    data = read_models(["bert.onnx", "gpt.onnx"], [], (), (), of_each)[1]["input_data"]
    assert {name: sorted(arrays) for name, arrays in data.items()} == {"bert": ["ids", "mask"], "gpt": ["ids"]}


def test_several_models_with_what_is_theirs() -> None:
    models = [
        {"name": "bert", "source": "/b/model.onnx", "weight": 3, "load": {"shapes": {"ids": [1, 8]}}},
        {"name": "tiny_cnn", "source": "zoo:tiny_cnn", "weight": 1, "load": {"constants": {"rate": 2}}},
    ]
    options = {"settings": Settings().to_json(), "target": "cpu", "models": models}
    given = tune_command.make_context("tune", shlex.split(reproduce(options, {}))[2:]).params
    own = read_models(*(given[name] for name in ("models", "weights", "shapes", "constants", "input_data")))
    assert own[0] == {"bert": "/b/model.onnx", "tiny_cnn": "zoo:tiny_cnn"}
    expected = {"weights": {"bert": 3}, "shapes": {"bert": {"ids": [1, 8]}}, "constants": {"tiny_cnn": {"rate": 2}}}
    assert {name: value for name, value in own[1].items() if value} == expected
    python: dict[str, Any] = {}
    text = reproduce({**options, "settings": Settings(slot_trials=5).to_json()}, {})
    exec(text, {"slipstream": type("api", (), {"tune": staticmethod(lambda *a, **k: python.update(k, args=a))})})
    assert python == {"args": (own[0], "DIR"), "settings": {"slot_trials": 5}, **expected}


def test_what_the_command_line_cannot_say_is_python() -> None:
    options = {"settings": Settings(slot_trials=5, seed=3).to_json(), "source": "m.onnx", "threads": 4}
    text = reproduce(options, Budget(None, 100).to_json())
    given: dict[str, Any] = {}
    exec(text, {"slipstream": type("api", (), {"tune": staticmethod(lambda *a, **k: given.update(k, args=a))})})
    assert given == {"args": ("m.onnx", "DIR"), "trials": 100, "threads": 4, "seed": 3, "settings": {"slot_trials": 5}}
    assert reproduce({**options, "source": "memory"}, {}).startswith("slipstream.tune(model, ")
