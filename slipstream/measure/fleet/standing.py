"""Which devices of a fleet are set aside: those that are slower than their equals, and those that compute wrongly."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection

from slipstream.measure.timing.noise import Drift
from slipstream.statistics import median

logger = logging.getLogger(__name__)

# A device whose last timings of the reference kernel are this much above the best device's usual time drifts.
_SLOWER = 1.3
_LAST = 3
# So many programs whose result was wrong on the device and right on another.
_MOST_WRONG = 2


class Standings:
    """How the devices do against each other; `drifts` are filled with their timings of the reference kernel.

    A device that drifts is used again when the kernel is back at its usual time; one that computes wrongly is not.
    """

    def __init__(self, drifts: dict[str, Drift]) -> None:
        self._drifts = drifts
        self._last: dict[str, deque[float]] = {}
        self._wrong: Counter[str] = Counter()
        self._aside: frozenset[str] = frozenset()
        self.changes = 0  # counts what may have changed who is set aside

    def timed(self, device: str, samples: list[float]) -> None:
        """The reference kernel took so long on a device."""
        self._drifts.setdefault(device, Drift()).add(samples)
        self._last.setdefault(device, deque(maxlen=_LAST)).append(median(samples))
        self.changes += 1

    def was_wrong(self, device: str) -> None:
        """A program whose result was wrong on a device has turned out to be right."""
        self._wrong[device] += 1
        self.changes += 1

    def is_busy(self, device: str) -> bool:
        """Whether something else ran on the device when it was last timed."""
        return device in self._drifts and self._drifts[device].is_busy

    def aside(self, devices: Collection[str]) -> frozenset[str]:
        """Those of `devices` not to be used now; never all of them because of drift."""
        wrong = {name for name in devices if self._wrong[name] >= _MOST_WRONG}
        timed = {name: median(self._last[name]) for name in devices if name in self._last and name not in wrong}
        slow = set[str]()
        if len(timed) > 1:
            usual = min(self._drifts[name].usual for name in timed)
            best = min(timed, key=timed.__getitem__)
            slow = {
                name
                for name, seconds in timed.items()
                if name != best and len(self._last[name]) == _LAST and seconds > _SLOWER * usual
            }
        aside = frozenset(wrong | slow)
        for name in sorted(aside - self._aside):
            slower = (
                "" if name in wrong else f"{timed[name] / usual:.1f} times as long as usual for the reference kernel"
            )
            logger.warning("device %s is set aside: it %s", name, f"takes {slower}" if slower else "computes wrongly")
        self._aside = aside
        return aside
