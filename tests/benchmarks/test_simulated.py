"""Simulated sessions take what was recorded for what a program takes."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slipstream
from benchmarks import simulated
from benchmarks.recorded_programs import Recording, record
from slipstream.errors import SlipstreamError
from slipstream.program.decisions import from_json
from slipstream.testing.measurer import SyntheticMeasurer

MODEL = "tiny_cnn"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a session of 120 trials that only pretends to measure."""
    folder = tmp_path_factory.mktemp("sessions")
    slipstream.tune(
        f"zoo:{MODEL}",
        folder / "session",
        trials=120,
        search="random",
        priors=None,
        settings={"without": ["own_sketches"]},
        measurer=lambda context: SyntheticMeasurer(),
    )
    return record(folder)


def test_what_was_measured_is_recorded_by_model_operator_and_sketch(recorded: dict[str, Any]) -> None:
    assert list(recorded) == [MODEL]
    programs = [one for sketches in recorded[MODEL].values() for some in sketches.values() for one in some]
    assert 60 < len(programs) <= 120
    assert all(1e-4 < seconds < 2e-2 for _, seconds in programs)


def test_a_recorded_program_takes_what_it_took_and_another_what_is_predicted(recorded: dict[str, Any]) -> None:
    recording = Recording(MODEL, recorded[MODEL])
    key = max(recorded[MODEL], key=lambda key: sum(map(len, recorded[MODEL][key].values())))
    space = recording.spaces[key]
    took = {seconds for programs in recorded[MODEL][key].values() for _, seconds in programs}
    example = next(example for example in space.sketches if example.sketch.digest in recorded[MODEL][key])
    for decisions, seconds in recorded[MODEL][key][example.sketch.digest]:
        assert recording.seconds(key, replace(example, decisions=from_json(decisions))) == seconds
    rng = np.random.default_rng(9)
    for _ in range(20):
        predicted = recording.seconds(key, space.draw(rng, space.stock))
        assert 0.9 * min(took) <= predicted <= 1.1 * max(took)


def test_variants_are_compared_on_the_recording(recorded: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "recording.json.gz"
    path.write_bytes(gzip.compress(json.dumps(recorded).encode()))
    asked = ["--recording", str(path), "--seeds", "2", "--trials", "40", "--variants", "round robin for DynaTune"]
    data = dict(simulated.measure(options(asked)))
    runs = data[MODEL]["runs"]
    assert list(runs) == ["everything", "round robin for DynaTune"]
    for latencies in (latencies for of in runs.values() for latencies in of.values()):
        assert latencies == sorted(latencies, reverse=True)
        assert latencies[-1] >= 0.9
    page = simulated.markdown(data)
    assert page.count("Simulated:") == 2
    assert "| round robin for DynaTune | " in page


def test_operators_that_are_not_recorded_are_left_out_and_many_such_refused(recorded: dict[str, Any]) -> None:
    known = list(recorded[MODEL].items())
    assert {one.key for one in Recording(MODEL, dict(known[1:])).operators} == {key for key, _ in known[1:]}
    with pytest.raises(SlipstreamError, match=r"the recording lacks .* of tiny_cnn and more: make it anew with"):
        Recording(MODEL, dict(known[: len(known) // 2]))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--recording", "none.json.gz"], "there is no recording none.json.gz: make one with --record FOLDER"),
        (["--record", "empty", "--recording", "x"], "empty has no session of a zoo model"),
        (["--variants", "no sense"], "no variant to simulate is called no sense"),
        (["--models", "vgg16"], "vgg16 is not recorded"),
    ],
)
def test_mistakes(asked: list[str], said: str) -> None:
    with pytest.raises(SlipstreamError, match=said):
        next(simulated.measure(options(asked)))


def options(words: list[str]) -> argparse.Namespace:
    from benchmarks.runner import parse

    return parse(sys.modules[simulated.__name__], "simulated", words)
