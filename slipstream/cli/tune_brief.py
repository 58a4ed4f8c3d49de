"""The view of a tuning session where there is no terminal: short lines at a rate that suits a log."""

from __future__ import annotations

from slipstream.cli.line_output import LineOutput
from slipstream.cli.tune_quiet import QuietView
from slipstream.session.events import Event, Snapshot
from slipstream.session.progress_line import ProgressLines


class BriefView(QuietView):
    """What `ProgressLines` writes, to a log whose reader may go away."""

    def __init__(self, output: LineOutput) -> None:
        self._lines = ProgressLines(output.write)

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        self._lines(event, snapshot)
