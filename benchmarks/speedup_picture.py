"""The picture of `benchmarks.speedup`: how soon, and how fast. Plain SVG that follows a light or dark page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.speedup_table import PRESET_END, ratios, reached, seeds

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; } .faint { fill: #59636e; }
.ours { fill: #0b62b8; } .theirs { fill: #9aa4ae; } .later { fill: #d5dae0; }
.axis { stroke: #59636e; } .spread { stroke: #1f2328; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .faint { fill: #9198a1; }
  .ours { fill: #5aa9f5; } .theirs { fill: #7d8690; } .later { fill: #3d444d; }
  .axis { stroke: #9198a1; } .spread { stroke: #e6edf3; }
}"""
_ROW, _BAR, _LEFT, _WIDTH, _GAP, _TOP = 46, 15, 130, 300, 150, 58
_NAMES = {
    "resnet18": "ResNet-18",
    "squeezenet1_1": "SqueezeNet 1.1",
    "mobilenet_v2": "MobileNet v2",
    "transformer_encoder": "Transformer",
}


def picture(models: Mapping[str, Any], path: Path) -> None:
    height = _TOP + _ROW * len(models) + 12
    width = _LEFT + 2 * _WIDTH + _GAP + 40
    body = "\n".join([*_times(models), *_latencies(models)])
    said = "How soon a model is as fast as MetaSchedule makes it, and its latency against ONNX Runtime"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{said}">\n<style>{_STYLE}\n</style>\n{body}\n</svg>\n'
    )


def _times(models: Mapping[str, Any]) -> Iterator[str]:
    """Left: seconds to the preset's final latency."""
    yield _text(_LEFT, 16, "Seconds until as fast as MetaSchedule's algorithm in the end", "title")
    yield from _legend(_LEFT, 36, {"ours": "Slipstream", "theirs": "MetaSchedule", "later": "until its end"})
    longest = max(result["stages"][PRESET_END]["seconds"] for result in models.values())
    for row, (model, result) in enumerate(models.items()):
        y = _TOP + _ROW * row
        end = result["stages"][PRESET_END]["seconds"]
        there = min(end, reached(result, "preset", PRESET_END))
        ours = median([reached(result, side, PRESET_END) for side in seeds(result)])
        yield _text(_LEFT - 10, y + _BAR + 4, _NAMES.get(model, model), anchor="end")
        if math.isfinite(ours):
            yield _bar(_LEFT, y, _WIDTH * ours / longest, "ours")
            yield _text(_LEFT + _WIDTH * ours / longest + 5, y + 12, f"{ours:.0f} s")
        else:
            yield _text(_LEFT + 5, y + 12, "not reached")
        yield _bar(_LEFT, y + _BAR + 2, _WIDTH * end / longest, "later")
        yield _bar(_LEFT, y + _BAR + 2, _WIDTH * there / longest, "theirs")
        label = f"{there:.0f} s" if there == end else f"{there:.0f} s, ended after {end:.0f} s"
        yield _text(_LEFT + _WIDTH * end / longest + 5, y + _BAR + 14, label, "faint")


def _latencies(models: Mapping[str, Any]) -> Iterator[str]:
    """Right: latency with ONNX Runtime's as one; median and quartiles over rounds."""
    left = _LEFT + _WIDTH + _GAP
    yield _text(left, 16, "Latency, ONNX Runtime's is 1", "title")
    yield from _legend(left, 36, {"ours": "tuned", "theirs": "untuned"})
    found = {model: {side: _spread(result, side) for side in ("tuned", "untuned")} for model, result in models.items()}
    most = max(1.1, *(high for sides in found.values() for _, _, high in sides.values()))
    scale = _WIDTH / most
    for row, sides in enumerate(found.values()):
        y = _TOP + _ROW * row
        for n, (side, kind) in enumerate((("tuned", "ours"), ("untuned", "theirs"))):
            low, middle, high = sides[side]
            top = y + n * (_BAR + 2)
            yield _bar(left, top, scale * middle, kind)
            yield _line(left + scale * low, top + _BAR / 2, left + scale * high, top + _BAR / 2, "spread")
            yield _text(left + scale * max(high, 1) + 5, top + 12, f"{middle:.2f}", "" if n == 0 else "faint")
    bottom = _TOP + _ROW * len(models) - 8
    yield _line(left + scale, _TOP - 6, left + scale, bottom, "axis")


def _spread(result: Mapping[str, Any], side: str) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of the ratio to ONNX Runtime."""
    names = ["untuned"] if side == "untuned" else [f"{name} end" for name in result["sides"] if name != "preset"]
    values = [ratio for name in names for ratio in ratios(result, name, "onnxruntime")]
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


def _legend(x: float, y: float, entries: Mapping[str, str]) -> Iterator[str]:
    for kind, name in entries.items():
        yield f'<rect class="{kind}" x="{x:.1f}" y="{y - 9}" width="10" height="10"/>'
        yield _text(x + 15, y, name, "faint")
        x += 24 + 7 * len(name)


def _bar(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{_BAR}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
