"""The picture of `benchmarks.ablation`: the latency without each part, every seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import svg
from benchmarks.ablation_table import WHOLE, after_as_many, counted, pairs_of, ratios_at
from slipstream.statistics import median

_ROW, _LEFT, _WIDTH, _TOP, _LABEL = 24, 200, 460, 58, 60
_LEAST, _MOST = 0.5, 3.0
_TICKS = {0.5: "0.5", 1.0: "1", 1.5: "1.5", 2.0: "2", 2.5: "2.5", _MOST: "3 or more"}


def picture(data: Mapping[str, Any], path: Path) -> None:
    """Of the part with the most runs."""
    part, result = max(data.items(), key=lambda item: sum(map(len, item[1]["runs"].values())))
    rows = {name: pairs for name, pairs in pairs_of(result).items() if name != WHOLE}
    height = _TOP + _ROW * len(rows) + 30
    said = f"Latency of {part} with one part of the method left out or changed, to that of the whole method"
    svg.write(path, _LEFT + _WIDTH + _LABEL, height, said, _body(part, result["budget"], rows))


def _body(part: str, budget: float, rows: Mapping[str, list[Any]]) -> Iterator[str]:
    yield svg.text(_LEFT, 16, f"Latency of {part} with one part changed, 1 with the whole method", "title")
    yield from svg.legend(_LEFT, 36, {"ours": f"after {budget:g} s", "theirs": "after as many trials"})
    bottom = _TOP + _ROW * len(rows)
    for tick, label in _TICKS.items():
        yield svg.line(_x(tick), _TOP - 8, _x(tick), bottom, "axis" if tick == 1 else "grid")
        yield svg.text(_x(tick), bottom + 16, label, "faint", "middle")
    for n, (name, pairs) in enumerate(rows.items()):
        middle = _TOP + _ROW * (n + 0.5) - 4
        by_time = ratios_at(pairs, budget)
        by_trials = [after_as_many(*pair) for pair in pairs] if counted(pairs) else []
        yield svg.text(_LEFT - 10, middle + 4, name, anchor="end")
        for ratios, y, kind in ((by_trials, middle + 4, "theirs"), (by_time, middle - 4, "ours")):
            yield from (svg.dot(_x(ratio), y, kind) for ratio in ratios if math.isfinite(ratio))
        if all(map(math.isfinite, by_time)):
            yield svg.text(_LEFT + _WIDTH + 12, middle + 4, f"{median(by_time):.2f}")


def _x(ratio: float) -> float:
    """Where a ratio lies; one beyond the end lies at the end."""
    return _LEFT + _WIDTH * (min(max(ratio, _LEAST), _MOST) - _LEAST) / (_MOST - _LEAST)
