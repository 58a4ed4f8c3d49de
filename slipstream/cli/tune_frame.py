"""Renders a snapshot of a tuning session as lines that fit the terminal."""

from __future__ import annotations

import math

from rich.cells import cell_len
from rich.text import Text

from slipstream.cli.tune_operators import fit, operator_lines
from slipstream.cli.tune_plot import curve
from slipstream.session.events import PHASES, Remaining, Snapshot, percent, trials_and_slots
from slipstream.session.quantities import duration, factor, latency, one_line, speedup
from slipstream.session.shapes import latencies_now

HINT = "Ctrl-C: stop here, keep the best so far"
_STOPPABLE = ("prepare", "defaults", "tune")
_FIGURES = 27
_NARROWEST_PLOT = 24
_FEWEST_ROWS = 3
_LONGEST_LABEL = 40


def frame(
    snapshot: Snapshot, width: int, height: int, *, waited: float = 0.0, note: str = "", final: bool = False
) -> list[Text]:
    """At most `height` lines of at most `width` cells.

    `waited`: seconds since the snapshot was taken; `final`: the session has ended and this is the last picture.
    """
    elapsed = snapshot.elapsed + waited
    header, footer = _header(snapshot, elapsed, width), _footer(snapshot, width, waited, note, final)
    operators = len(snapshot.operators)
    room = height - len(footer) - 1
    each = [] if final else _each(snapshot, (height - 10) // 4)
    plot_height = _plot_height(height - 6 - len(each), operators, width)
    above = _overview(snapshot, elapsed, width, plot_height) if plot_height else _figures(snapshot)[:1]
    above += each
    room -= len(above)
    spaced = room >= min(operators + 1, 12) + 2
    gap = [Text()] if spaced else []
    table = operator_lines(snapshot, width, room - 2 * len(gap))
    lines = [header, *above, *gap, *table, *(gap if table else []), *footer]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _plot_height(room: int, operators: int, width: int) -> int:
    """Rows for the curve: none if the table needs them more, more on a tall terminal."""
    if width < _FIGURES + _NARROWEST_PLOT:
        return 0
    spare = room - 1 - (min(operators, _FEWEST_ROWS) + 1)
    return 0 if spare < 4 else min(10, max(4, (room - 8) // 3, room - operators - 5))


def _header(snapshot: Snapshot, elapsed: float, width: int) -> Text:
    clock = duration(elapsed)
    line = Text(one_line(snapshot.model), style="bold")
    line.append(f"  {one_line(snapshot.target)}", style="not bold dim")
    line.truncate(max(0, width - len(clock) - 2), overflow="ellipsis", pad=True)
    return line.append(f"  {clock}", style="bold")


def _figures(snapshot: Snapshot) -> list[Text]:
    """The session's figures, the most important first."""
    operators = snapshot.operators
    if not operators:
        first, second = Text("no operators yet", style="bold"), Text()
    elif math.isfinite(snapshot.latency):
        first = Text(latency(snapshot.latency, 4), style="bold")
        if speedup(snapshot.start_latency, snapshot.latency) is not None:
            first.append(f"  {factor(snapshot.start_latency, snapshot.latency)} as fast", style="green")
        second = Text(f"{latency(snapshot.start_latency, 4)} at the start", style="dim")
    else:
        timed = sum(math.isfinite(row.best) for row in operators)
        first = Text("no latency yet", style="bold")
        second = Text(f"{timed} of {len(operators)} operators timed", style="dim")
    finished = sum(row.finished for row in operators)
    third = Text(trials_and_slots(snapshot))
    fourth = Text(_count(len(operators), "operator") + (f", {finished} finished" if finished else ""))
    return [first, second, third, fourth]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _overview(snapshot: Snapshot, elapsed: float, width: int, height: int) -> list[Text]:
    """The figures on the left, the curve of the latency on the right, its times below."""
    figures = [*_figures(snapshot), *[Text()] * height]
    points = list(snapshot.curve)
    known = [value for _, value in points if math.isfinite(value)]
    labels = [""] * height
    if known and min(known) < max(known):
        labels[0], labels[-1] = latency(max(known), 4), latency(min(known), 4)
    elif known:
        labels[(height - 1) // 2] = latency(known[0], 4)
    margin = max(8, *(len(label) for label in labels))
    plot_width = width - _FIGURES - margin - 2
    lines = []
    for label, dots, figure in zip(labels, curve(points, elapsed, plot_width, height), figures, strict=False):
        line = figure.copy()
        line.truncate(_FIGURES - 1, overflow="ellipsis", pad=True)
        line.append(f" {label:>{margin}}", style="not bold dim").append(" ┤" if label else " │", style="dim")
        lines.append(line.append(dots, style="not bold cyan"))
    clock = duration(elapsed)
    axis = f"{'0:00':>{_FIGURES + margin + 5}}{clock:>{max(0, plot_width - 4)}}"
    return [*lines, Text(axis, style="dim")]


def _each(snapshot: Snapshot, most: int) -> list[Text]:
    """A line for each of several shapes or models, at most so many."""
    rows = latencies_now(snapshot)
    if not rows or most < 1:
        return []
    shown = rows if len(rows) <= most else rows[: most - 1]
    longest = min(_LONGEST_LABEL, max(cell_len(one_line(row.shape)) for row in rows))
    lines = []
    for row in shown:
        line = Text(fit(one_line(row.shape), longest)).append(f"  {latency(row.latency, 4):>9}", style="bold")
        line.append(f"  {factor(row.start, row.latency)} as fast", style="green")
        lines.append(line.append(f"  weight {row.weight}", style="dim") if row.weight > 1 else line)
    rest = [Text(f"... and {len(rows) - len(shown)} more", style="dim")] if len(shown) < len(rows) else []
    return [*lines, *rest]


def _footer(snapshot: Snapshot, width: int, waited: float, note: str, final: bool) -> list[Text]:
    lines = [_budget(snapshot, width, waited)]
    if snapshot.left is not None:
        lines.append(Text(f"more tuning: {snapshot.left}"))
    if snapshot.phase != "done":
        lines.append(_phases(snapshot.phase))
        if not final:
            lines.append(Text(one_line(snapshot.doing), style="cyan"))  # even if empty: the picture should not jump
    failures = dict(snapshot.failures)
    if failures:
        by_kind = sorted(failures.items(), key=lambda item: -item[1])
        lines.append(Text("failed: " + ", ".join(f"{one_line(kind)} {n}" for kind, n in by_kind), style="yellow"))
    lines += [Text(one_line(text), style="yellow") for text in dict.fromkeys((note, snapshot.fallback)) if text]
    if not final and snapshot.phase in _STOPPABLE:
        lines.append(Text(HINT, style="dim"))
    return lines


def _phases(phase: str) -> Text:
    """Every phase in order, the current one highlighted."""
    line = Text()
    *phases, _ = PHASES
    here = PHASES.index(phase)
    for position, name in enumerate(phases):
        line.append(" · " if position else "", style="dim")
        style = "bold reverse" if position == here else "green" if position < here else "dim"
        line.append(f" {name} " if position == here else name, style=style)
    return line


def _budget(snapshot: Snapshot, width: int, waited: float) -> Text:
    left = time_left(snapshot.remaining, waited)
    used = snapshot.remaining.fraction_used
    if snapshot.phase == "done":
        return Text(f"done in {duration(snapshot.elapsed)}", style="bold green")
    if used is None or not math.isfinite(used):
        return Text(left or "no budget set: tuning goes on until it is stopped", style="dim")
    used = min(1.0, max(0.0, used))
    text = f" {100 * used:3.0f}%  {left}".rstrip()
    length = max(10, width - len(text))
    filled = round(used * length)
    return Text("━" * filled, style="green").append("─" * (length - filled), style="dim").append(text, style="default")


def time_left(remaining: Remaining, waited: float = 0.0) -> str:
    """`4:19 left, 512 trials left, until 8.00 ms`: the budgets that were set."""
    parts = []
    if remaining.seconds is not None and math.isfinite(remaining.seconds):
        parts.append(f"{duration(remaining.seconds - waited)} left")
    if remaining.trials is not None:
        parts.append(f"{_count(remaining.trials, 'trial')} left")
    if remaining.until_latency is not None:
        parts.append(f"until {latency(remaining.until_latency)}")
    if remaining.until_gain_below is not None:
        parts.append(f"until under {percent(remaining.until_gain_below)} are left to gain")
    return ", ".join(parts)
