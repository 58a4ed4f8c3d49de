"""The picture of `benchmarks.originals`: latency of what each tuner has, over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import pictures
from benchmarks.originals.settings import ANSOR, BY_SKETCH, CODE_DIFFUSION
from benchmarks.originals.table import METASCHEDULE, NAMES, OURS, best_known, by_side, scaled_curve

_COLOURS = {
    ANSOR: "#9aa4ae",
    CODE_DIFFUSION: "#c2570c",
    BY_SKETCH: "#e8a87c",
    METASCHEDULE: "#3c8d4f",
    OURS: pictures.OURS,
}
_PANELS_A_ROW = 3
_HIGHEST = 8.0  # times the lowest latency: what is slower is not shown


def picture(data: Mapping[str, Any], path: Path) -> None:
    columns = max(1, min(_PANELS_A_ROW, len(data)))
    rows = max(1, math.ceil(len(data) / columns))
    height = 3.4 * rows

    def fill(figure: Any, *panels: Any) -> None:
        used, unused = panels[: len(data)], panels[len(data) :]
        figure.subplots_adjust(
            left=0.07, right=0.98, wspace=0.25, hspace=0.55, top=1 - 0.75 / height, bottom=0.48 / height
        )
        for axes, (model, result) in zip(used, data.items(), strict=True):
            _curves(axes, model, result)
        for axes in unused:
            axes.remove()
        for axes in panels[::columns]:
            axes.set_ylabel("latency, ms")
        entries = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in used]
        lines = {label: line for panel in entries for line, label in panel}
        pictures.legend(panels[0], handles=list(lines.values()), labels=list(lines), ncols=5)

    pictures.draw(path, (max(6.4, 4.4 * columns), height), columns, fill, rows=rows)


def _curves(axes: Any, model: str, result: Mapping[str, Any]) -> None:
    """Steps from the first built model on, each seed a line; a dot where the tuning ended."""
    for side, names in by_side(result).items():
        for number, name in enumerate(names):
            seconds, latencies = zip(*scaled_curve(result, name), strict=True)
            colour, label = _COLOURS[side], "_" if number else NAMES[side]
            axes.step(seconds, [1e3 * value for value in latencies], where="post", color=colour, label=label)
            axes.plot(seconds[-1], 1e3 * latencies[-1], "o", markersize=4, color=colour)
    best = 1e3 * best_known(result)
    axes.set_title(model, pad=22)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(0.9 * best, _HIGHEST * best)
    ticks = [round(times * best, 1 if best < 10 else 0) for times in (1, 2, 4, 8)]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("seconds")
    axes.grid(color=pictures.GRID, linewidth=0.6)
