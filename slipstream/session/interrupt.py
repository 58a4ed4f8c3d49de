"""Ctrl-C while tuning: the first asks for an orderly end, the second ends at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While entered, SIGINT, SIGTERM and SIGHUP are noted; a second one raises KeyboardInterrupt.

    One that is ignored, as nohup and background jobs ignore some, stays ignored.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        return self._asked

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
