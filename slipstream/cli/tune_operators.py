"""The table of operators in the live view: the biggest shares of the latency first, as many as there is room for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from slipstream.cli.tune_plot import bar, trend
from slipstream.session.events import OperatorProgress, Snapshot
from slipstream.session.quantities import UNKNOWN, factor, latency, one_line, speedup

_NAME_WIDTH = 24  # columns are left out before the name gets less than this
_TREND = 8
_WORTH_COLOUR = 1.005


@dataclass(frozen=True)
class _Column:
    """`show` gets the operator, its share of the model's latency (None: unknown) and the biggest share of all."""

    title: str
    width: int
    show: Callable[[OperatorProgress, float | None, float], str]
    style: str = ""
    left: bool = False


_COLUMNS = (
    _Column("calls", 6, lambda row, *_: str(row.weight), "dim"),
    _Column("best", 9, lambda row, *_: latency(row.best)),
    _Column("share", 7, lambda _row, share, _: UNKNOWN if share is None else f"{100 * share:.1f}%"),
    _Column("", 9, lambda _, share, biggest: bar((share or 0.0) / biggest, 8), "cyan", left=True),
    _Column("trials", 7, lambda row, *_: str(row.trials)),
    _Column("gain", 7, lambda row, *_: factor(row.start, row.best)),
    _Column("trend", _TREND + 1, lambda row, *_: trend([row.start, *row.recent], _TREND), "blue", left=True),
    _Column("failed", 7, lambda row, *_: str(row.failures or ""), "yellow"),
)
_LEFT_OUT_FIRST = ("", "calls", "failed", "trend", "trials", "share", "gain", "best")


def operator_lines(snapshot: Snapshot, width: int, height: int) -> list[Text]:
    """A heading and a row for each operator, in at most `height` lines; the current operator is always among them."""
    operators = list(snapshot.operators)
    if not operators or height < 2:
        return []
    columns = _columns_for(width)
    total = sum(_cost(row) for row in operators if math.isfinite(row.best))
    ranked = sorted(operators, key=lambda row: -_cost(row) if math.isfinite(row.best) else math.inf)
    shown = _visible(ranked, snapshot.current, height - 1)
    longest = max(cell_len(one_line(row.name)) for row in operators)
    name_width = min(_name_width(width, columns), max(longest, _NAME_WIDTH))
    lines = [_heading(columns, name_width)]
    biggest = _share(ranked[0], total) or 1.0
    for row in shown:
        cells = [(column, column.show(row, _share(row, total), biggest)) for column in columns]
        lines.append(_row(row, cells, name_width, row.key == snapshot.current))
    if len(shown) < len(ranked) and len(lines) < height:
        lines.append(_more(ranked, shown, total))
    return lines


def fit(text: str, width: int) -> str:
    """`text` in exactly `width` terminal cells, cut with an ellipsis if it is longer."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - 1)) + "…"[:width]


def _cost(row: OperatorProgress) -> float:
    return row.weight * row.best


def _share(row: OperatorProgress, total: float) -> float | None:
    return _cost(row) / total if math.isfinite(row.best) and total > 0 else None


def _columns_for(width: int) -> list[_Column]:
    columns = list(_COLUMNS)
    for title in _LEFT_OUT_FIRST:
        if _name_width(width, columns) >= _NAME_WIDTH:
            break
        columns = [column for column in columns if column.title != title]
    return columns


def _name_width(width: int, columns: Sequence[_Column]) -> int:
    return max(0, width - 2 - sum(column.width for column in columns))


def _visible(ranked: list[OperatorProgress], current: str | None, room: int) -> list[OperatorProgress]:
    """The first of `ranked`, leaving a line to say how many more there are; the current one replaces the last."""
    if len(ranked) <= room:
        return ranked
    shown = ranked[: max(1, room - 1)]
    if all(row.key != current for row in shown):
        shown[-1:] = [row for row in ranked if row.key == current] or shown[-1:]
    return shown


def _heading(columns: Sequence[_Column], name_width: int) -> Text:
    titles = "".join(_aligned(column, column.title) for column in columns)
    return Text("  " + fit("operator", name_width) + titles, style="dim")


def _aligned(column: _Column, text: str) -> str:
    return f" {text:<{column.width - 1}}" if column.left else f"{text:>{column.width}}"


def _row(row: OperatorProgress, cells: Sequence[tuple[_Column, str]], name_width: int, current: bool) -> Text:
    mark = "▸ " if current else "✓ " if row.finished else "  "
    line = Text(mark, style="bold" if current else "", no_wrap=True)
    line.append(fit(one_line(row.name), name_width), style="cyan" if current else "")
    for column, shown in cells:
        line.append(_aligned(column, shown), style=_style(column, row))
    return line


def _style(column: _Column, row: OperatorProgress) -> str:
    if column.title == "gain":
        return "green" if (speedup(row.start, row.best) or 0.0) > _WORTH_COLOUR else "dim"
    return column.style


def _more(ranked: Sequence[OperatorProgress], shown: Sequence[OperatorProgress], total: float) -> Text:
    keys = {row.key for row in shown}
    rest = [row for row in ranked if row.key not in keys]
    untimed = sum(not math.isfinite(row.best) for row in rest)
    share = sum(_share(row, total) or 0.0 for row in rest)
    text = f"  ... and {len(rest)} more"
    if untimed < len(rest):
        text += f", {100 * share:.1f}% of the latency"
    if untimed:
        text += f", {untimed} without a time yet"
    return Text(text, style="dim")
