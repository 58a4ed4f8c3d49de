"""Progress of long commands: a live line on a terminal, nothing but errors in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def _progress(*columns: Any) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def stages(title: str, names: Sequence[str]) -> Iterator[Callable[[str], None]]:
    """A line `title  3/6 schedule  0:00:04`; call the result with each stage as it begins.

    The live line starts with the first stage, after any process has been forked.
    """
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

    progress = _progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[stage]}"),
        TimeElapsedColumn(),
    )
    task = progress.add_task(title, total=len(names), stage="")

    def show(stage: str) -> None:
        progress.start()
        position = names.index(stage)
        progress.update(task, completed=position, stage=f"{position + 1}/{len(names)} {stage}")

    try:
        yield show
    finally:
        progress.stop()


@contextmanager
def fraction(title: str) -> Iterator[Callable[[float], None]]:
    """A bar with the time left; call the result with the fraction that is done."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    progress = _progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    task = progress.add_task(title, total=1.0)
    with progress:
        yield lambda done: progress.update(task, completed=done)
