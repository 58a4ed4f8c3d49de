"""The statistics of a comparison, on contenders whose true ratio is known."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from slipstream.artifact import bench
from slipstream.artifact.bench import OURS, BaselineError, _ratio, _timing, interleave
from slipstream.statistics import median_ranks


def test_contenders_alternate_and_the_ratio_is_found() -> None:
    order: list[str] = []

    def contender(name: str, seconds: float):
        def run() -> None:
            if not order or order[-1] != name:
                order.append(name)
            time.sleep(seconds)

        return run

    blocks = interleave({OURS: contender("a", 0.002), "other": contender("b", 0.006)}, 1.0, np.random.default_rng(0))
    assert order.count("a") >= 5
    assert order.count("b") >= 5
    ratio = _ratio("other", blocks[OURS], blocks["other"])
    assert 2.0 < ratio.low <= ratio.median <= ratio.high < 3.5


def test_interval_of_the_median_covers_it_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    true_median = np.log(2.0)
    covered = 0
    for _ in range(1000):
        timing = _timing("x", [list(rng.exponential(size=40))])
        covered += timing.low <= true_median <= timing.high
    assert 930 <= covered <= 990


def test_interval_ranks_stay_inside_small_samples() -> None:
    for count in range(1, 30):
        low, high = median_ranks(count)
        assert 0 <= low <= high < count


def test_what_another_runtime_raises_is_one_line_with_a_remedy(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(name: str, *_: object) -> object:
        def run() -> None:
            raise RuntimeError("backend='inductor' raised:\nshapes do not match\n\n")

        return run

    monkeypatch.setattr(bench, "baseline", failing)
    with pytest.raises(BaselineError) as error:
        bench.bench(tiny_artifact, against=["torch.compile"], seconds=0.1)
    assert str(error.value) == "torch.compile cannot run this model (shapes do not match): leave it out of --against"
    assert error.value.name == "torch.compile"
