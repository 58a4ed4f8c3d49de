"""A session in a notebook: a display that changes in place."""

from __future__ import annotations

import html
import math
import sys
import time
from typing import Any

from slipstream.session.events import Event, OperatorProgress, Snapshot
from slipstream.session.progress_line import progress_line
from slipstream.session.quantities import duration, factor, latency
from slipstream.session.shapes import latencies_now

_REDRAW = 0.5  # seconds between two pictures
_MOST = 8  # operators
_WIDTH, _HEIGHT = 360, 60


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook; an IPython in a terminal is none."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython  # type: ignore[import-not-found, unused-ignore]

    return hasattr(get_ipython(), "kernel")


class NotebookProgress:
    """Shows the latest snapshot as HTML; a front end without HTML shows one line of text."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = -math.inf
        self._notes: list[str] = []

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        if event.kind == "message":
            self._notes.append(str(event.data.get("text", "")))
        now = time.monotonic()
        if event.kind not in ("message", "finished") and now - self._drawn < _REDRAW:
            return
        self._drawn = now
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        bundle = {"text/plain": progress_line(snapshot), "text/html": picture(snapshot, self._notes)}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def close(self) -> None:
        """The last picture stays."""


def picture(snapshot: Snapshot, notes: list[str]) -> str:
    """The snapshot as HTML without scripts or styles of its own page."""
    used = snapshot.remaining.fraction_used
    done = snapshot.phase == "done"
    bar = "" if done or used is None else f'<progress value="{min(1.0, used):.3f}" max="1"></progress> '
    left = "" if snapshot.remaining.seconds is None or done else f", {duration(snapshot.remaining.seconds)} left"
    doing = "" if done else f" &middot; {html.escape(snapshot.phase)} {html.escape(snapshot.doing)}"
    figures = "not all operators timed yet"
    if math.isfinite(snapshot.latency):
        gain = factor(snapshot.start_latency, snapshot.latency)
        figures = f"<b>{latency(snapshot.latency, 4)}</b>, {gain} as fast as untuned"
        figures += "".join(
            f"<div>{html.escape(row.shape)}: {latency(row.latency)}, {factor(row.start, row.latency)}</div>"
            for row in latencies_now(snapshot)
        )
    more = "" if snapshot.left is None else f"<div>more tuning: {html.escape(str(snapshot.left))}</div>"
    said = "".join(f"<div><i>{html.escape(note)}</i></div>" for note in notes)
    return (
        f"<div><b>{html.escape(snapshot.model)}</b> {html.escape(snapshot.target)}</div>"
        f"<div>{bar}{duration(snapshot.elapsed)}{left}, {snapshot.trials} trials{doing}</div>"
        f"<div>{figures}</div>{more}{_curve(snapshot)}{_operators(snapshot)}{said}"
    )


def _curve(snapshot: Snapshot) -> str:
    points = [(at, value) for at, value in snapshot.curve if math.isfinite(value)]
    if len(points) < 2:
        return ""
    last, high = max(snapshot.elapsed, points[-1][0]) or 1.0, max(value for _, value in points)
    steps, before = [], points[0][1]
    for at, value in points:
        steps += [(at, before), (at, value)]
        before = value
    steps.append((last, before))
    path = " ".join(f"{_WIDTH * at / last:.1f},{_HEIGHT * (1 - 0.95 * value / high):.1f}" for at, value in steps)
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="latency over time">'
        f'<polyline points="{path}" fill="none" stroke="currentColor"/></svg>'
    )


def _operators(snapshot: Snapshot) -> str:
    timed = [row for row in snapshot.operators if math.isfinite(row.best)]
    rows = sorted(timed, key=lambda row: -row.weight * row.best)[:_MOST]
    if not rows:
        return ""
    head = "".join(f"<th>{title}</th>" for title in ("operator", "calls", "best", "gain", "trials"))
    return f"<table><tr>{head}</tr>{''.join(map(_row, rows))}</table>"


def _row(row: OperatorProgress) -> str:
    gain = factor(row.start, row.best)
    cells = (html.escape(row.name), row.weight, latency(row.best), gain, row.trials)
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
