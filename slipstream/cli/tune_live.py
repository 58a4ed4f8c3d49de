"""The live view of a tuning session: fills the terminal, and prints its last state when the session ends."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from threading import Event as Flag
from threading import Thread
from types import TracebackType

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderResult
from rich.control import Control
from rich.text import Text

from slipstream.cli.tune_frame import frame
from slipstream.cli.tune_quiet import QuietView
from slipstream.session.events import Event, Snapshot

_SHORTEST_WAIT = 1 / 8
_CLOCK = 1.0  # without news, the picture changes once a second, for the time
_HEAL = 5.0  # how often every line is drawn again, in case something else wrote to the terminal
_DRAWING_SHARE = 0.02  # of one core: on a slow terminal or machine the picture is drawn less often


@dataclass(frozen=True)
class _Update:
    snapshot: Snapshot
    at: float
    note: str


@dataclass(frozen=True)
class _Changes:
    """The lines of a picture that differ from what is on the screen."""

    lines: dict[int, Text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for row, line in self.lines.items():
            yield Control.move_to(0, row)
            yield line


class LiveView(QuietView):
    """Draws on the alternate screen, from a thread of its own, so that a resize or a long build needs no event.

    It switches to the alternate screen at the first event and back on every exit; then it prints the last picture,
    followed by the output of Python code in the meantime.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._news: _Update | None = None
        self._drawn: _Update | None = None
        self._drawn_at = self._healed_at = -_HEAL
        self._screen: list[Text] = []
        self._size = ConsoleDimensions(0, 0)
        self._end = Flag()
        self._thread = Thread(target=self._keep_drawing, name="tune-view", daemon=True)
        self._restore = ExitStack()
        self._printed = StringIO()

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        note = self._news.note if self._news else ""
        if event.kind == "message":
            note = str(event.data.get("text", note))
        self._news = _Update(snapshot, time.monotonic(), note)
        if self._thread.ident is None:
            self._take_screen()
            self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError), self._restore:  # an OSError: the terminal was closed, and nothing is left to restore
            self._end.set()
            if self._thread.ident is not None:
                self._thread.join()
        with suppress(OSError):
            if self._news is not None:
                self._leave_picture(self._news)
            sys.stderr.write(self._printed.getvalue())

    def _take_screen(self) -> None:
        self._console.file = self._console.file  # the real one, before standard output is redirected
        self._restore.enter_context(self._console.screen(hide_cursor=True))
        self._restore.callback(self._console.control, Control.clear())  # tmux, once resized, would keep parts of it
        self._restore.enter_context(redirect_stdout(self._printed))
        self._restore.enter_context(redirect_stderr(self._printed))

    def _keep_drawing(self) -> None:
        wait = _SHORTEST_WAIT
        with suppress(OSError):
            while not self._end.wait(wait):
                began = time.thread_time()
                self._draw()
                wait = min(_CLOCK, max(_SHORTEST_WAIT, (time.thread_time() - began) / _DRAWING_SHARE))

    def _draw(self) -> None:
        news, now, size = self._news, time.monotonic(), self._console.size
        if news is None or (news is self._drawn and now - self._drawn_at < _CLOCK and size == self._size):
            return
        width, height = size
        waited = 0.0 if news.snapshot.phase == "done" else now - news.at
        lines = frame(news.snapshot, width, height, waited=waited, note=news.note)
        lines += [Text() for _ in range(height - len(lines))]
        for line in lines:
            line.end = ""
            line.pad_right(width - line.cell_len)
        heal = size != self._size or now - self._healed_at >= _HEAL
        changes = {
            row: line for row, line in enumerate(lines) if heal or row >= len(self._screen) or line != self._screen[row]
        }
        self._console.print(_Changes(changes), end="", crop=False)
        self._drawn, self._drawn_at, self._screen, self._size = news, now, lines, size
        if heal:
            self._healed_at = now

    def _leave_picture(self, news: _Update) -> None:
        width, height = self._console.size
        lines = frame(news.snapshot, width, height - 1, note=news.note, final=True)
        self._console.print(*lines, sep="\n")
