"""The picture of `benchmarks.ablation`: the latency without each part, every seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import pictures
from benchmarks.ablation_table import after_as_many, counted, models_on, pairs_of_all, ratios_at, target_of
from slipstream.statistics import median

_LEAST, _MOST = 0.5, 3.0
_TICKS = {0.5: "0.5", 1.0: "1", 1.5: "1.5", 2.0: "2", 2.5: "2.5", _MOST: "3 or more"}


def picture(data: Mapping[str, Any], path: Path) -> None:
    """Of all models on the target with the most of them. A ratio beyond the end of the axis is drawn at the end."""
    on = max((target_of(part) for part in data), key=lambda on: (len(models_on(data, on)), not on))
    rows, budget = pairs_of_all(data, on), data[models_on(data, on)[0]]["budget"]

    def fill(figure: Any, axes: Any) -> None:
        height = figure.get_figheight()
        figure.subplots_adjust(left=0.28, right=0.92, top=1 - 0.5 / height, bottom=0.3 / height)
        axes.set_title("Latency with one part changed, 1 with the whole method", pad=22)
        for row, pairs in enumerate(rows.values()):
            by_time = ratios_at(pairs, budget)
            by_trials = [after_as_many(*pair) for pair in pairs] if counted(pairs) else []
            _dots(axes, by_trials, row + 0.17, pictures.THEIRS, "after as many trials" if row == 0 else None)
            _dots(axes, by_time, row - 0.17, pictures.OURS, f"after {budget:g} s" if row == 0 else None)
            if all(map(math.isfinite, by_time)):
                axes.text(_MOST + 0.09, row, f"{median(by_time):.2f}", va="center")
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xticks(list(_TICKS), list(_TICKS.values()), color=pictures.FAINT)
        axes.set_xlim(_LEAST, _MOST)
        axes.grid(axis="x", color=pictures.GRID)
        axes.axvline(1, color=pictures.FAINT, linewidth=1)
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(length=0)
        pictures.legend(axes, ncols=2, reverse=True)

    pictures.draw(path, (7.5, 0.85 + 0.25 * len(rows)), 1, fill)


def _dots(axes: Any, ratios: list[float], y: float, colour: str, label: str | None) -> None:
    values = [min(max(ratio, _LEAST), _MOST) for ratio in ratios if math.isfinite(ratio)]
    axes.plot(values, [y] * len(values), "o", color=colour, markersize=5, markeredgewidth=0, clip_on=False, label=label)
