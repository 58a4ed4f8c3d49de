"""The picture of `benchmarks.speedup`: tuning time and latency."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import svg
from benchmarks.speedup_table import PRESET_END, ratios, reached, seeds

_ROW, _LEFT, _WIDTH, _GAP, _TOP = 46, 130, 300, 150, 58
_NAMES = {
    "resnet18": "ResNet-18",
    "squeezenet1_1": "SqueezeNet 1.1",
    "mobilenet_v2": "MobileNet v2",
    "transformer_encoder": "Transformer",
}


def picture(models: Mapping[str, Any], path: Path) -> None:
    height = _TOP + _ROW * len(models) + 12
    width = _LEFT + 2 * _WIDTH + _GAP + 40
    said = "How soon a model is as fast as MetaSchedule makes it, and its latency against ONNX Runtime"
    svg.write(path, width, height, said, [*_times(models), *_latencies(models)])


def _times(models: Mapping[str, Any]) -> Iterator[str]:
    """Left: seconds to the preset's final latency."""
    yield svg.text(_LEFT, 16, "Seconds until as fast as MetaSchedule's algorithm in the end", "title")
    yield from svg.legend(_LEFT, 36, {"ours": "Slipstream", "theirs": "MetaSchedule", "later": "until its end"})
    longest = max(result["stages"][PRESET_END]["seconds"] for result in models.values())
    for row, (model, result) in enumerate(models.items()):
        y = _TOP + _ROW * row
        end = result["stages"][PRESET_END]["seconds"]
        there = min(end, reached(result, "preset", PRESET_END))
        ours = median([reached(result, side, PRESET_END) for side in seeds(result)])
        yield svg.text(_LEFT - 10, y + svg.BAR + 4, _NAMES.get(model, model), anchor="end")
        if math.isfinite(ours):
            yield svg.bar(_LEFT, y, _WIDTH * ours / longest, "ours")
            yield svg.text(_LEFT + _WIDTH * ours / longest + 5, y + 12, f"{ours:.0f} s")
        else:
            yield svg.text(_LEFT + 5, y + 12, "not reached")
        yield svg.bar(_LEFT, y + svg.BAR + 2, _WIDTH * end / longest, "later")
        yield svg.bar(_LEFT, y + svg.BAR + 2, _WIDTH * there / longest, "theirs")
        label = f"{there:.0f} s" if there == end else f"{there:.0f} s, ended after {end:.0f} s"
        yield svg.text(_LEFT + _WIDTH * end / longest + 5, y + svg.BAR + 14, label, "faint")


def _latencies(models: Mapping[str, Any]) -> Iterator[str]:
    """Right: latency with ONNX Runtime's as one; median and quartiles over rounds."""
    left = _LEFT + _WIDTH + _GAP
    yield svg.text(left, 16, "Latency, ONNX Runtime's is 1", "title")
    yield from svg.legend(left, 36, {"ours": "tuned", "theirs": "untuned"})
    found = {model: {side: _spread(result, side) for side in ("tuned", "untuned")} for model, result in models.items()}
    most = max(1.1, *(high for sides in found.values() for _, _, high in sides.values()))
    scale = _WIDTH / most
    for row, sides in enumerate(found.values()):
        y = _TOP + _ROW * row
        for n, (side, kind) in enumerate((("tuned", "ours"), ("untuned", "theirs"))):
            low, middle, high = sides[side]
            top = y + n * (svg.BAR + 2)
            yield svg.bar(left, top, scale * middle, kind)
            yield svg.line(left + scale * low, top + svg.BAR / 2, left + scale * high, top + svg.BAR / 2, "spread")
            yield svg.text(left + scale * max(high, 1) + 5, top + 12, f"{middle:.2f}", "" if n == 0 else "faint")
    bottom = _TOP + _ROW * len(models) - 8
    yield svg.line(left + scale, _TOP - 6, left + scale, bottom, "axis")


def _spread(result: Mapping[str, Any], side: str) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of the ratio to ONNX Runtime."""
    names = ["untuned"] if side == "untuned" else [f"{name} end" for name in result["sides"] if name != "preset"]
    values = [ratio for name in names for ratio in ratios(result, name, "onnxruntime")]
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)
