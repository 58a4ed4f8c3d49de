"""Comparisons: their statistics on contenders whose ratio is known, and contenders that fail."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from slipstream.artifact.bench import BACK_TO_BACK, OURS, PATTERNS, BaselineError, bench
from slipstream.artifact.comparison import Comparison, _agree, block_length, interleave_blocks
from slipstream.artifact.latency_statistics import ratio_of, timing_of
from slipstream.artifact.request_pattern import Block, RequestPattern, run_block
from slipstream.errors import ArtifactError, InputError, MissingDependencyError
from slipstream.statistics import median_ranks


@pytest.mark.timing
def test_contenders_alternate_and_the_ratio_is_found() -> None:
    order: list[str] = []

    def contender(name: str, seconds: float):
        def run() -> None:
            if not order or order[-1] != name:
                order.append(name)
            time.sleep(seconds)

        return lambda length, seed: run_block(run, BACK_TO_BACK, length, seed)

    contenders = {OURS: contender("a", 0.002), "other": contender("b", 0.006)}
    timed = interleave_blocks(contenders, 0.1, 0.1, np.random.default_rng(0))
    assert order.count("a") >= 5
    assert order.count("b") >= 5
    ratio = ratio_of("other", timed[OURS], timed["other"])
    # How wide the interval is, is the machine's affair: a busy one made it 2.5 to 3.51.
    assert ratio.low <= ratio.median <= ratio.high
    assert 2.0 < ratio.median < 4.5


def test_interval_of_the_median_covers_it_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    true_median = np.log(2.0)
    covered = 0
    for _ in range(1000):
        timing = timing_of("x", [Block(list(rng.exponential(size=40)), 1.0, 1.0)])
        covered += timing.low <= true_median <= timing.high
    assert 930 <= covered <= 990


def test_several_callers_are_compared_by_requests_and_slowest_hundredths() -> None:
    rng = np.random.default_rng(0)
    ours = [Block(list(rng.uniform(1.0, 2.0, 200)), 100.0, 1.0) for _ in range(8)]
    theirs = [Block(list(rng.uniform(1.0, 3.0, 100)), 100.0, 1.0) for _ in range(8)]
    ratio = ratio_of("other", ours, theirs, callers=4)
    assert ratio.requests is not None
    assert ratio.p99 is not None
    assert (ratio.requests.low, ratio.requests.value, ratio.requests.high) == (2.0, 2.0, 2.0)
    assert ratio.p99.low <= ratio.p99.value <= ratio.p99.high
    assert ratio.p99.value == pytest.approx(2 / 3, rel=0.02)
    assert ratio_of("other", ours, theirs).requests is None


def test_figures_are_of_all_requests_of_all_blocks() -> None:
    first = Block([0.001 * n for n in range(1, 61)], 2.0, 0.5)
    second = Block([0.001 * n for n in range(61, 102)], 3.0, 0.7, unserved=1)
    timing = timing_of("x", [second, first], "spinning")
    assert timing.runs == 101
    assert (timing.median, timing.p90, timing.p99) == pytest.approx((0.051, 0.091, 0.1))
    assert timing.requests_per_second == pytest.approx(100 / 5)
    assert timing.processor_seconds == pytest.approx(1.2 / 100)
    assert (timing.setting, timing.unserved) == ("spinning", 1)


def test_interval_ranks_stay_inside_small_samples() -> None:
    for count in range(1, 30):
        low, high = median_ranks(count)
        assert 0 <= low <= high < count


def test_blocks_shrink_to_fit_the_time_but_not_below_what_the_pattern_needs() -> None:
    assert block_length(RequestPattern(), 100.0, 2) == 0.1
    assert block_length(RequestPattern(pause=0.02), 5.0, 2) == 0.2
    assert block_length(RequestPattern(pause=0.1), 10.0, 2) == 0.5
    assert block_length(RequestPattern(pause=0.1), 1.0, 2) == 0.2
    assert block_length(RequestPattern(rate=1.0), 1.0, 2) == 3.0


@pytest.mark.timing
def test_every_setting_is_a_process_and_the_faster_one_is_named(tiny_artifact: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    rng = np.random.default_rng(0)
    with Comparison(tiny_artifact, threads=1) as comparison:
        comparison.add("onnxruntime")
        started = {child.pid for child in psutil.Process().children()} - before
        assert {name: set(settings) for name, settings in comparison.facts.items()} == {
            OURS: {""},
            "onnxruntime": {"spinning", "no spinning"},
        }
        assert len(started) >= 3
        for facts in (facts for settings in comparison.facts.values() for facts in settings.values()):
            assert min(facts.import_seconds, facts.load_seconds, facts.memory_bytes, facts.process_threads) > 0
        for pattern in (*PATTERNS, RequestPattern(callers=2), RequestPattern(rate=200.0)):
            part = comparison.measure(pattern, 0.1, rng)
            ours, theirs = part.timings
            assert (ours.name, theirs.name) == (OURS, "onnxruntime")
            assert theirs.setting in ("spinning", "no spinning")
            for timing in part.timings:
                assert timing.low <= timing.median <= timing.high
                assert timing.median <= timing.p90 <= timing.p99
                assert timing.runs >= 10
                assert timing.requests_per_second > 0
                assert timing.processor_seconds > 0
            (ratio,) = part.ratios
            assert ratio.low <= ratio.median <= ratio.high
    left = {child.pid for child in psutil.Process().children()}
    assert len(started & left) <= 1  # at most the sandbox that reads ONNX files


def test_each_of_several_callers_calls_often_in_a_block(tiny_artifact: Path) -> None:
    """Else requests a second are those of callers that all begin at once and wait for the last one."""
    pattern = RequestPattern(pause=0.05, callers=2)
    with Comparison(tiny_artifact, threads=1) as comparison:
        (timing,) = comparison.measure(pattern, 0.1, np.random.default_rng(0)).timings
    assert timing.runs >= 5 * 2 * 8  # rounds, callers, calls


def test_the_process_is_bound_to_the_cores_given(tiny_artifact: Path) -> None:
    core = min(psutil.Process().cpu_affinity())
    with Comparison(tiny_artifact, threads=1, cores=[core]) as comparison:
        contender = comparison._started[OURS][""]
        assert psutil.Process(contender._process.pid).cpu_affinity() == [core]


def shadow(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Put a package called openvino before the real one, for the processes of contenders too."""
    (folder / "openvino.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))


def test_what_another_runtime_raises_is_one_line_with_a_remedy(
    tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow(tmp_path, monkeypatch, 'def Core():\n    raise RuntimeError("raised:\\nshapes do not match\\n\\n")\n')
    with pytest.raises(BaselineError) as error:
        bench(tiny_artifact, against=["openvino"], seconds=0.1)
    assert str(error.value) == "openvino cannot run this model (shapes do not match): leave it out of --against"
    assert error.value.name == "openvino"


def test_a_runtime_that_crashes_says_how_it_ended(
    tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow(tmp_path, monkeypatch, "import os\n\ndef Core():\n    os.kill(os.getpid(), 9)\n")
    with pytest.raises(BaselineError, match=r"its process ended by SIGKILL"):
        bench(tiny_artifact, against=["openvino"], seconds=0.1)


def test_a_runtime_that_computes_something_else_is_not_timed(
    tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
import numpy as np

class Core:
    outputs = [0]
    data = np.full((1, 10), 100.0, np.float32)
    def read_model(self, path): return path
    def compile_model(self, *_): return self
    def create_infer_request(self): return self
    def infer(self, *_, **__): pass
    def get_output_tensor(self, position): return self
"""
    shadow(tmp_path, monkeypatch, source)
    with pytest.raises(InputError, match="openvino computes something else"):
        bench(tiny_artifact, against=["openvino"], seconds=0.1)


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_values_that_are_no_numbers_hide_no_difference_and_make_none(odd: float) -> None:
    mine = np.array([1.0, 2.0, 3.0, odd], np.float32)
    assert _agree(mine, mine.copy(), 1e-3)
    assert not _agree(mine, np.array([100.0, -7.0, 55.0, odd], np.float32), 1e-3)


def test_nothing_is_measured_of_a_directory_that_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is not a compiled model"):
        bench(tmp_path, seconds=0.1)
    with pytest.raises(InputError, match="positive number of seconds"):
        bench(tmp_path, seconds=0.0)


def test_a_contender_that_has_ended_is_an_error_and_nothing_else(
    tiny_artifact: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Comparison(tiny_artifact, threads=1) as comparison:
        process = comparison._started[OURS][""]._process
        process.kill()
        process.wait()
        with pytest.raises(ArtifactError, match="its process ended by SIGKILL"):
            comparison.measure(RequestPattern(), 0.1, np.random.default_rng(0))
    gc.collect()
    assert capfd.readouterr().err == ""


@pytest.mark.timing
def test_without_the_onnx_package_only_the_other_runtimes_are_missing(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "slipstream.frontends.onnx_import", raising=False)
    with Comparison(tiny_artifact, threads=1) as comparison:
        with pytest.raises(MissingDependencyError, match="cannot be read without onnx"):
            comparison.add("onnxruntime")
        assert comparison.measure(RequestPattern(), 0.1, np.random.default_rng(0)).timings[0].runs >= 10
