"""What pictures made from raw results share: colours, fonts, and files that are the same bytes every time.

matplotlib is imported when a picture is drawn, since tables are made without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

OURS, THEIRS, FAINT, GRID = "#0b62b8", "#9aa4ae", "#59636e", "#d5dae0"
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "ytick.left": False,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",  # text stays text: found by a search, and not drawn by the fonts of one machine
    "svg.hashsalt": "slipstream",
}


def draw(path: Path, inches: tuple[float, float], columns: int, fill: Any, *, rows: int = 1) -> None:
    """Write the SVG that `fill` draws into a row of axes, or into several, one after the other.

    Neither the date nor matplotlib's version is in the file, and no length depends on the fonts of the machine or on
    what else has been set in this process.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}):
        figure = Figure(figsize=inches)
        FigureCanvasSVG(figure)
        fill(figure, *figure.subplots(rows, columns, squeeze=False).flat)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def legend(axes: Any, **options: Any) -> None:
    """A row of entries between the title and the plot."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), borderaxespad=0.2, handlelength=1, handletextpad=0.4,
                columnspacing=1.2, **options)  # fmt: skip
