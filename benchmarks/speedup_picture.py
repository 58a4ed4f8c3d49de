"""The picture of `benchmarks.speedup`: tuning time and latency."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import pictures
from benchmarks.speedup_table import PRESET_END, ratios, reached, seeds

_NAMES = {
    "resnet18": "ResNet-18",
    "squeezenet1_1": "SqueezeNet 1.1",
    "mobilenet_v2": "MobileNet v2",
    "transformer_encoder": "Transformer",
}
_BAR, _APART = 0.34, 0.19


def picture(models: Mapping[str, Any], path: Path) -> None:
    def fill(figure: Any, times: Any, latencies: Any) -> None:
        height = figure.get_figheight()
        figure.subplots_adjust(left=0.13, right=0.96, wspace=0.5, top=1 - 0.5 / height, bottom=0.05 / height)
        _times(times, models)
        _latencies(latencies, models)
        times.set_yticks(range(len(models)), [_NAMES.get(model, model) for model in models])
        latencies.set_yticks([])
        for axes in (times, latencies):
            axes.set_ylim(len(models) - 0.5, -0.5)
            axes.set_xticks([])
            axes.spines["bottom"].set_visible(False)
            axes.tick_params(length=0)

    pictures.draw(path, (9.6, 0.7 + 0.48 * len(models)), 2, fill)


def _times(axes: Any, models: Mapping[str, Any]) -> None:
    """Left: seconds to the preset's final latency."""
    axes.set_title("Seconds until as fast as MetaSchedule's algorithm in the end", pad=22)
    ends = [float(result["stages"][PRESET_END]["seconds"]) for result in models.values()]
    theirs = [min(end, reached(r, "preset", PRESET_END)) for end, r in zip(ends, models.values(), strict=True)]
    ours = [median([reached(r, side, PRESET_END) for side in seeds(r)]) for r in models.values()]
    found = [seconds if math.isfinite(seconds) else 0.0 for seconds in ours]
    rows = np.arange(len(models))
    axes.barh(rows - _APART, found, _BAR, color=pictures.OURS, label="Slipstream")
    axes.barh(rows + _APART, ends, _BAR, color=pictures.LATER, label="MetaSchedule until its end")
    axes.barh(rows + _APART, theirs, _BAR, color=pictures.THEIRS, label="MetaSchedule")
    axes.set_xlim(0, max(ends))
    space = max(ends) / 60
    for row, (our, their, end) in enumerate(zip(ours, theirs, ends, strict=True)):
        axes.text(found[row] + space, row - _APART, f"{our:.0f} s" if found[row] else "not reached", va="center")
        ended = f"{their:.0f} s" if their == end else f"{their:.0f} s, ended after {end:.0f} s"
        axes.text(end + space, row + _APART, ended, va="center", color=pictures.FAINT)
    pictures.legend(axes, ncols=3)


def _latencies(axes: Any, models: Mapping[str, Any]) -> None:
    """Right: latency with ONNX Runtime's as one; median and quartiles over rounds."""
    axes.set_title("Latency, ONNX Runtime's is 1", pad=22)
    rows, most = np.arange(len(models)), 1.1
    for side, shift, colour in (("tuned", -_APART, pictures.OURS), ("untuned", _APART, pictures.THEIRS)):
        low, middle, high = np.array([_spread(result, side) for result in models.values()]).T
        axes.barh(rows + shift, middle, _BAR, color=colour, label=side)
        axes.hlines(rows + shift, low, high, color="black", linewidth=1.2)
        for row, value, end in zip(rows, middle, high, strict=True):
            axes.text(max(end, 1) + 0.03, row + shift, f"{value:.2f}", va="center")
        most = max(most, *high)
    axes.axvline(1, color=pictures.FAINT, linewidth=1)
    axes.set_xlim(0, most)
    pictures.legend(axes, ncols=2)


def _spread(result: Mapping[str, Any], side: str) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of the ratio to ONNX Runtime."""
    names = ["untuned"] if side == "untuned" else [f"{name} end" for name in result["sides"] if name != "preset"]
    values = [ratio for name in names for ratio in ratios(result, name, "onnxruntime")]
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)
