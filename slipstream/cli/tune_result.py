"""Prints the result of a tuning session."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slipstream.session.events import OperatorProgress, Snapshot, trials_and_slots
from slipstream.session.quantities import duration, factor, latency, one_line, speedup
from slipstream.session.shapes import ShapeLatency

_MOST = 5


def render_result(snapshot: Snapshot, end_to_end: float | None, shapes: Sequence[ShapeLatency] = ()) -> RenderableType:
    """The latencies, and the operators that gained most.

    Sums of operators are compared with sums; `end_to_end` is the compiled model's seconds for a run, of all `shapes`.
    """
    head = Text(one_line(snapshot.model), style="bold")
    head.append(f"  {duration(snapshot.elapsed)}, {trials_and_slots(snapshot)}", style="not bold dim")
    fallback = [Text(), Text(one_line(snapshot.fallback), style="yellow")] if snapshot.fallback else []
    above: list[RenderableType] = [head, Text(), _latencies(snapshot, end_to_end), *fallback, Text()]
    return Group(*above, *shape_table(shapes, snapshot), *_gains(snapshot))


def _latencies(snapshot: Snapshot, end_to_end: float | None) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    table.add_row("operators, start", latency(snapshot.start_latency, 4))
    gained = Text(_as_fast(snapshot.start_latency, snapshot.latency), style="bold green")
    table.add_row("operators, best", Text(latency(snapshot.latency, 4), style="bold"), gained)
    if end_to_end is not None:
        what = "all models" if snapshot.weights else "all shapes" if snapshot.calls else "whole model"
        whole = snapshot.whole_gain
        beside = "" if whole is None else f"{whole:.2f}x as fast as untuned"
        table.add_row(what, Text(latency(end_to_end, 4), style="bold"), beside)
    return table


def shape_table(shapes: Sequence[ShapeLatency], snapshot: Snapshot) -> list[RenderableType]:
    """A row for each shape or each of several models, with an empty line below; nothing for one model of one shape."""
    if not shapes:
        return []
    weighted = any(row.weight > 1 for row in shapes)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("model" if snapshot.weights else "shape", ratio=1, no_wrap=True, overflow="ellipsis")
    for title in (*(("weight",) if weighted else ()), "operators, start", "best", "gain", "whole model"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in shapes:
        whole = "" if row.end_to_end is None else latency(row.end_to_end, 4)
        times = (latency(row.start), latency(row.latency), factor(row.start, row.latency), whole)
        table.add_row(Text(one_line(row.shape)), *((str(row.weight),) if weighted else ()), *times)
    return [table, Text()]


def _as_fast(before: float, after: float) -> str:
    return "" if speedup(before, after) is None else f"{factor(before, after)} as fast"


def _gains(snapshot: Snapshot) -> list[RenderableType]:
    gained = sorted((row for row in snapshot.operators if _saved(row) > 0), key=_saved, reverse=True)
    if not gained:
        return [Text("no operator became faster", style="dim")]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("gained most", ratio=1, no_wrap=True, overflow="ellipsis")
    for title, width in (("calls", 5), ("start", 7), ("best", 7), ("gain", 5), ("saved", 7)):
        table.add_column(title, justify="right", min_width=width, no_wrap=True)
    for row in gained[:_MOST]:
        times = (latency(row.start), latency(row.best), factor(row.start, row.best), latency(_saved(row)))
        table.add_row(Text(one_line(row.name)), str(row.weight), *times)
    more = len(gained) - _MOST
    return [table, Text(f"... and {more} more", style="dim")] if more > 0 else [table]


def _saved(row: OperatorProgress) -> float:
    """Seconds of a run of the model; 0 for an operator that had no time at the start."""
    return row.weight * (row.start - row.best) if speedup(row.start, row.best) is not None else 0.0
