"""A session in one short line, for logs and for a terminal that is not taken over."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from typing import TextIO

from slipstream.session.events import Event, Snapshot, percent
from slipstream.session.quantities import duration, factor, latency, one_line, speedup
from slipstream.session.shapes import latencies_now

_BAR = 10
_MOST_MODELS = 4
_PARTS = " ▏▎▍▌▋▊▉█"
# Seconds between two lines of a log: from so many elapsed on, so many.
_RATES = ((3600.0, 300.0), (600.0, 60.0), (0.0, 10.0))
_REDRAW = 0.2


def progress_line(snapshot: Snapshot) -> str:
    """`44%|████▍     | 2:13<2:47  28.41 ms, 1.42x as fast, 312 trials, at most 4 % more is likely`."""
    remaining, used = snapshot.remaining, snapshot.remaining.fraction_used
    clock = duration(snapshot.elapsed)
    if remaining.seconds is not None and snapshot.phase != "done":
        clock += f"<{duration(remaining.seconds)}"
    bar = f"{100 * used:3.0f}%|{_bar(used)}| " if used is not None and snapshot.phase != "done" else ""
    said = [] if snapshot.phase in ("tune", "done") else [snapshot.phase]
    if math.isfinite(snapshot.latency):
        said.append(latency(snapshot.latency, 4) + _each(snapshot))
        if speedup(snapshot.start_latency, snapshot.latency) is not None:
            said.append(f"{factor(snapshot.start_latency, snapshot.latency)} as fast")
    said.append("1 trial" if snapshot.trials == 1 else f"{snapshot.trials} trials")
    if snapshot.left is not None:
        said.append(
            f"at most {percent(snapshot.left.at_most)} more" if snapshot.left.at_most else "nothing more likely"
        )
    return f"{bar}{clock}  {', '.join(said)}"


def _each(snapshot: Snapshot) -> str:
    """The latency of each of several models, in brackets."""
    rows = latencies_now(snapshot) if snapshot.weights else ()
    more = ", ..." if len(rows) > _MOST_MODELS else ""
    each = ", ".join(f"{row.shape} {latency(row.latency)}" for row in rows[:_MOST_MODELS])
    return f" ({each}{more})" if each else ""


def _bar(share: float) -> str:
    eighths = round(8 * _BAR * min(1.0, max(0.0, share)))
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_PARTS[part] if part else "")).ljust(_BAR)


class ProgressLines:
    """For a log: the start, each phase, messages and the end at once, and in between a line every ten seconds, every
    minute after ten of them, every five after an hour.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._phase = ""
        self._written = -math.inf

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        if event.kind == "message":
            self._write(one_line(str(event.data.get("text", ""))))
            return
        new = event.kind in ("started", "finished") or snapshot.phase != self._phase
        wait = next(seconds for since, seconds in _RATES if snapshot.elapsed >= since)
        if not new and snapshot.elapsed - self._written < wait:
            return
        self._phase, self._written = snapshot.phase, snapshot.elapsed
        name = f"{snapshot.model} for {snapshot.target}: " if event.kind == "started" else ""
        self._write(one_line(f"{name}{progress_line(snapshot)}"))

    def close(self) -> None:
        """Nothing is left open."""


class ProgressOnTerminal:
    """For a terminal: one line that changes in place; messages and the last state stay."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = -math.inf
        self._line = ""

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        if event.kind == "message":
            self._draw(str(event.data.get("text", "")))
            _put(self._stream, "\n")
        if event.kind in ("message", "finished", "phase") or snapshot.elapsed - self._drawn >= _REDRAW:
            self._drawn = snapshot.elapsed
            self._draw(progress_line(snapshot))

    def _draw(self, line: str) -> None:
        self._line = one_line(line)[: shutil.get_terminal_size().columns - 1]
        _put(self._stream, f"\r{self._line}\x1b[K")

    def close(self) -> None:
        if self._line:
            _put(self._stream, "\n")


def put_line(stream: TextIO, line: str) -> None:
    """Write `line` and a line break at once."""
    _put(stream, f"{line}\n")


def _put(stream: TextIO, text: str) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()
