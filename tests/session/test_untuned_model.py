"""A tuned model that is slower than the untuned one does not take its place."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import slipstream
from slipstream import plugins
from slipstream.measure.types import Candidate, Measurement
from slipstream.plugins import Context
from slipstream.session import untuned_model
from slipstream.session.untuned_model import times_of_untuned, worth_comparing


def convolution() -> onnx.ModelProto:
    """One operator that takes most of a call, and much longer with a program drawn at random."""
    weights = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    shape = [1, 64, 28, 28]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph(
        [node],
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Upside:
    """The real measurer, upside down: the slower a program is, the faster it says that it is, but for default ones.

    A default program is `claimed` times as slow as the slowest other one.
    """

    def __init__(self, context: Context, claimed: float) -> None:
        self._real = plugins.make("measurer", "local", context)
        self._claimed = claimed
        self._known: set[str] = set()  # operators with a default program, which is the first to be measured

    def measure(self, programs: Iterable[Candidate]) -> Iterator[Measurement]:
        for measured in self._real.measure(programs):
            operator = measured.program.operator
            seconds = 1e-3 * self._claimed if operator not in self._known else 1e-3 * (1 - min(measured.median, 0.01))
            self._known.add(operator)
            yield replace(measured, samples=(seconds,) * 3) if measured.failure is None else measured

    def close(self) -> None:
        self._real.close()


@pytest.mark.parametrize(
    ("claimed", "least_seconds", "replaced"),
    [(1.1, 0.0, True), (1.1, 1e6, False), (5.0, 0.0, False)],
    ids=["a little faster", "in a short session", "much faster"],
)
def test_a_tuned_model_slower_than_the_untuned_one_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claimed: float, least_seconds: float, replaced: bool
) -> None:
    """The measurer claims that slow programs are faster than the default one."""
    monkeypatch.setattr(untuned_model, "_LEAST_SECONDS", least_seconds)
    directory = tmp_path / "s"
    result = slipstream.tune(
        convolution(),
        directory,
        trials=16,
        effort="quick",
        search="random",
        measurer=lambda context: Upside(context, claimed),
    )
    assert ("times as long as the untuned one" in result.fallback) == replaced
    assert (slipstream.load(directory).manifest.tuned == {}) == replaced
    assert result.whole_gain is None
    assert sorted(path.name for path in directory.iterdir()) == ["model", "session.json", "store.db"]


def test_a_short_time_more_does_not_bring_the_slower_model_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the seconds of the whole session that decide whether the two are compared."""
    monkeypatch.setattr(untuned_model, "_LEAST_SECONDS", 0.0)
    directory = tmp_path / "s"
    options = {"effort": "quick", "search": "random", "measurer": lambda context: Upside(context, 1.1)}
    onnx.save(convolution(), tmp_path / "model.onnx")
    first = slipstream.tune(tmp_path / "model.onnx", directory, trials=16, **options)
    assert "times as long as the untuned one" in first.fallback
    monkeypatch.setattr(untuned_model, "_LEAST_SECONDS", first.elapsed)
    more = slipstream.resume(directory, trials=2, measurer=options["measurer"])
    assert "times as long as the untuned one" in more.fallback
    assert slipstream.load(directory).manifest.tuned == {}


@pytest.mark.parametrize(("latency", "compared"), [(1e-3, True), (1.0, False)])
def test_models_whose_calls_take_seconds_are_not_compared_in_a_short_session(latency: float, compared: bool) -> None:
    assert worth_comparing(latency, latency, 90.0) == compared
    assert worth_comparing(latency, latency, 900.0)


def test_a_model_takes_as_long_as_itself(tmp_path: Path) -> None:
    slipstream.compile(convolution(), tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    ratios = [times_of_untuned(tmp_path / "one", tmp_path / "other", threads=1)[0] for _ in range(3)]
    assert 0.8 < statistics.median(ratios) < 1.25
