"""A tuning session that nobody watches, and what every view starts from."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from slipstream.session.events import Event, Snapshot


class QuietView:
    """Shows nothing: the result is for the command to print. Enter a view, hand it to the session, leave it."""

    def __enter__(self) -> Self:
        return self

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        """Something happened; `snapshot` may go on changing after the call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The session is over, well or badly."""
