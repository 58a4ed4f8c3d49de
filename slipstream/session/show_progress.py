"""How `slipstream.tune` shows its progress in Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from slipstream.session.events import Watcher
from slipstream.session.notebook import NotebookProgress, is_notebook
from slipstream.session.progress_line import ProgressLines, ProgressOnTerminal, put_line


@contextmanager
def show_progress(wanted: bool | None) -> Iterator[list[Watcher]]:
    """Watchers that show it: in a notebook unless `wanted` is False; elsewhere, on standard error, if it is True."""
    notebook = wanted is not False and is_notebook()
    if not wanted and not notebook:
        yield []
        return
    view: NotebookProgress | ProgressOnTerminal | ProgressLines
    if notebook:
        view = NotebookProgress()
    else:
        stream = sys.stderr
        view = ProgressOnTerminal(stream) if stream.isatty() else ProgressLines(partial(put_line, stream))
    try:
        yield [view]
    finally:
        view.close()
