"""The picture of `benchmarks.ablation`: the latency without each part, every seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import svg
from benchmarks.ablation_table import WHOLE, after_as_many, pairs_of, ratios_at
from slipstream.statistics import median

_ROW, _LEFT, _WIDTH, _TOP, _LABEL = 24, 200, 460, 58, 60
_LEAST, _MOST = 0.5, 2.5
_TICKS = (0.5, 1.0, 1.5, 2.0, 2.5)


def picture(data: Mapping[str, Any], path: Path) -> None:
    """Of the first part that has several seeds: one alone is not worth a picture."""
    found = [(part, result) for part, result in data.items() if len(result["runs"][WHOLE]) > 1]
    part, result = (found or list(data.items()))[0]
    rows = {name: pairs for name, pairs in pairs_of(result).items() if name != WHOLE}
    height = _TOP + _ROW * len(rows) + 30
    said = f"Latency of {part} with one part of the method left out, to that of the whole method"
    svg.write(path, _LEFT + _WIDTH + _LABEL, height, said, _body(part, result["budget"], rows))


def _body(part: str, budget: float, rows: Mapping[str, list[Any]]) -> Iterator[str]:
    yield svg.text(_LEFT, 16, f"Latency of {part} with one part left out, 1 with all", "title")
    yield from svg.legend(_LEFT, 36, {"ours": f"after {budget:g} s", "theirs": "after as many trials"})
    bottom = _TOP + _ROW * len(rows)
    for tick in _TICKS:
        yield svg.line(_x(tick), _TOP - 8, _x(tick), bottom, "axis" if tick == 1 else "grid")
        yield svg.text(_x(tick), bottom + 16, f"{tick:g}", "faint", "middle")
    for n, (name, pairs) in enumerate(rows.items()):
        middle = _TOP + _ROW * (n + 0.5) - 4
        by_time, by_trials = ratios_at(pairs, budget), [after_as_many(*pair) for pair in pairs]
        yield svg.text(_LEFT - 10, middle + 4, name, anchor="end")
        for ratios, y, kind in ((by_trials, middle + 4, "theirs"), (by_time, middle - 4, "ours")):
            yield from (svg.dot(_x(ratio), y, kind) for ratio in ratios if math.isfinite(ratio))
        if all(map(math.isfinite, by_time)):
            yield svg.text(_LEFT + _WIDTH + 12, middle + 4, f"{median(by_time):.2f}")


def _x(ratio: float) -> float:
    """Where a ratio lies; one beyond the end lies at the end."""
    return _LEFT + _WIDTH * (min(max(ratio, _LEAST), _MOST) - _LEAST) / (_MOST - _LEAST)
