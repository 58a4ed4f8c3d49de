"""Tables on a terminal; the same, unwrapped, in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_WIDE = 200


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "", numeric: int = 0) -> None:
    """Print `rows`; the last `numeric` columns are right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    table = Table(box=None, pad_edge=False, title=title or None, title_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position >= len(columns) - numeric else "left")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)
