"""How much of a prior's improvement reaches its followers, as measured so far.

The first slot of a follower measures programs that were carried over from its relatives. The share by which they take
less time than its default program, in comparison with what the prior had gained by then, is what was transferred. A
slot of the prior is worth its own gain and this part of it for every follower still waiting: once that is less than
what the followers' own slots promise, the scheduler gives these the slots, and the family is released.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from slipstream.session.history import OperatorHistory

CARRIED = ("diffusion:keep", "diffusion:scale")
_IMAGINED = 2.0  # followers to which everything was transferred: one disappointment says little
_LEAST_GAIN = 0.05  # of the prior: what was transferred of less cannot be told from noise


def measured_transfer(prior: OperatorHistory, followers: Iterable[OperatorHistory]) -> float:
    """The mean share of the prior's gain that reached followers in their first slot; 1 while there is none."""
    shares = [share for share in (_share(prior, follower) for follower in followers) if share is not None]
    return (_IMAGINED + sum(shares)) / (_IMAGINED + len(shares))


def _share(prior: OperatorHistory, follower: OperatorHistory) -> float | None:
    """None if nothing was carried over yet, or the prior had gained nothing that could be."""
    first = next((slot for slot in follower.slots if not slot.default and slot.ended is not None), None)
    if first is None:
        return None
    carried = [trial.seconds for trial in first.trials if trial.origin in CARRIED and not trial.is_inconclusive]
    before = [prior.best_after[end] for slot, _, end in prior.spans() if slot.number < first.number]
    if not carried or not before or not (math.isfinite(follower.start) and math.isfinite(prior.start)):
        return None
    gained, reached = math.log(prior.start / before[-1]), math.log(follower.start / min(follower.start, *carried))
    return min(1.0, reached / gained) if gained > _LEAST_GAIN else None
