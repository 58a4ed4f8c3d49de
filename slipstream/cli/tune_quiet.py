"""The view that shows nothing (`--quiet`), and base class of all views of a tuning session."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from slipstream.session.events import Event, Snapshot


class QuietView:
    """Shows nothing; the command prints the result. A view is a context manager that is passed to the session."""

    def __enter__(self) -> Self:
        return self

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        """Called for each event; `snapshot` may change after the call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The session has ended, with or without an error."""
