"""Plotting for the figures of this folder: each is a PNG and a CSV with the same numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slipstream.statistics import median, median_interval

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.4",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.92",
    "legend.frameon": False,
    "legend.fontsize": 7,
    "savefig.dpi": 150,
    "figure.constrained_layout.use": True,
}
# Distinguished by lightness and dashes, also in greyscale; the first is the subject of the figure.
_LINES = (
    {"color": "#10305a", "linestyle": "-", "linewidth": 1.8},
    {"color": "#c0562c", "linestyle": "--", "linewidth": 1.3},
    {"color": "#6a9a3f", "linestyle": "-.", "linewidth": 1.3},
    {"color": "#8f7fb5", "linestyle": ":", "linewidth": 1.6},
    {"color": "0.6", "linestyle": (0, (6, 1, 1, 1, 1, 1)), "linewidth": 1.2},
)
_PANEL = (3.1, 2.4)
_MOST_COLUMNS = 3


def panels(names: Sequence[str]) -> tuple[Figure, dict[str, Axes]]:
    """A figure with a titled panel for each name."""
    mpl.rcParams.update(STYLE)
    columns = 2 if len(names) == 4 else min(len(names), _MOST_COLUMNS)
    rows = math.ceil(len(names) / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(_PANEL[0] * columns, _PANEL[1] * rows), squeeze=False)
    axes = dict(zip(names, grid.flat, strict=False))
    for name, axis in axes.items():
        axis.set_title(name, fontsize=8)
    for unused in list(grid.flat)[len(names) :]:
        unused.set_visible(False)
    return figure, axes


def legend(figure: Figure, axes: Mapping[str, Axes]) -> None:
    """One legend for all panels, above them."""
    handles, labels = next(iter(axes.values())).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 1 + len(axes)))


def lines() -> Iterable[Mapping[str, Any]]:
    """Line styles, in order of importance."""
    return cycle(_LINES)


def band(runs: Sequence[Sequence[float]]) -> list[tuple[float, float, float]]:
    """Median and the ends of its 95 % interval, at each place of several runs of one length."""
    points = []
    for values in zip(*runs, strict=True):
        interval = median_interval(values)
        points.append((median(values), interval.low, interval.high))
    return points


def draw_band(
    axis: Axes, x: Sequence[float], points: Sequence[tuple[float, float, float]], label: str, line: Any
) -> None:
    """A median as a line and its interval as a shade; what is infinite is left out."""
    middle, low, high = (np.where(np.isfinite(column), column, np.nan) for column in np.array(points, dtype=float).T)
    axis.plot(x, middle, label=label, drawstyle="steps-post", **line)
    axis.fill_between(x, low, high, step="post", color=line["color"], alpha=0.15, linewidth=0)


def save(
    figure: Figure, folder: Path, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]
) -> list[Path]:
    """Write NAME.png and NAME.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    picture, table = folder / f"{name}.png", folder / f"{name}.csv"
    # The version of matplotlib would change the bytes of an equal picture.
    figure.savefig(picture, metadata={"Software": None})
    plt.close(figure)
    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    return [picture, table]
