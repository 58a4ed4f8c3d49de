"""Choosing how a tuning session is shown: a live picture, a log, JSON lines or nothing."""

from __future__ import annotations

from typing import Literal, TextIO, cast

from rich.console import Console

from slipstream.cli.line_output import LineOutput
from slipstream.cli.tune_brief import BriefView
from slipstream.cli.tune_json import JsonView
from slipstream.cli.tune_live import LiveView
from slipstream.cli.tune_plain import PlainView
from slipstream.cli.tune_quiet import QuietView
from slipstream.errors import SlipstreamError

Mode = Literal["auto", "live", "plain", "json", "quiet"]


def make_view(mode: Mode, console: Console | None = None) -> QuietView:
    """The view for `mode`; "auto" is live on a terminal that can show it and a few short lines anywhere else."""
    console = console or Console()
    output = LineOutput(cast("TextIO", console.file))
    match mode:
        case "auto":
            return LiveView(console) if _can_draw(console) else BriefView(output)
        case "live":
            if not _can_draw(console):
                raise SlipstreamError("the live view needs a terminal that shows Unicode: choose plain, json or quiet")
            return LiveView(console)
        case "plain":
            return PlainView(output)
        case "json":
            return JsonView(output)
        case "quiet":
            return QuietView()
    raise SlipstreamError(f"there is no view {mode!r}: choose auto, live, plain, json or quiet")


def _can_draw(console: Console) -> bool:
    """Rich calls a pipe a terminal when colours are forced; a picture needs a real one."""
    return console.is_interactive and console.file.isatty() and console.encoding.startswith("utf")
