"""The method of TVM's stock cost model: trained from nothing on everything, again and again.

The reference that `incremental` is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipstream.cost.examples import Examples
from slipstream.cost.pack_sum import PackSum, boost, load_booster, new_booster, score
from slipstream.cost.random import Random
from slipstream.cost.state import read_state, write_state
from slipstream.cost.types import Example, Features

if TYPE_CHECKING:
    from xgboost import Booster

# TVM's own values.
_SETTINGS = {"max_depth": 10, "gamma": 0.001, "min_child_weight": 0.0, "eta": 0.2, "seed": 43}
_ROUNDS = 10_000
_PATIENCE = 50


class MetaSchedule:
    """Scores are random until there are `warm_up` examples; it is trained again when they are `growth` times as many.

    The defaults are TVM's.
    """

    def __init__(self, seed: int, threads: int, *, warm_up: int = 100, growth: float = 1.2) -> None:
        self._least = warm_up
        self._growth = growth
        self._settings = _SETTINGS | {"nthread": threads}
        self._threads = threads
        self._warm_up = Random(seed)
        self._examples = Examples()
        self._trained_on = 0
        self._booster: Booster | None = None

    def score(self, features: Sequence[Features]) -> NDArray[np.float64]:
        if self._booster is None or len(self._examples) < self._least:
            return self._warm_up.score(features)
        return score(self._booster, features, self._threads)

    def learn(self, examples: Sequence[Example]) -> None:
        self._examples.add(examples)
        count = len(self._examples)
        if not count or count < self._growth * self._trained_on:
            return
        self._trained_on = count
        everything = range(count)
        data = PackSum(self._examples.features(everything), self._examples.labels(everything), self._threads)
        self._booster = new_booster(self._settings, data)
        boost(self._booster, data, rounds=_ROUNDS, patience=_PATIENCE)

    def state(self) -> bytes:
        trees = b"" if self._booster is None else self._booster.save_raw("ubj")
        return write_state(
            "metaschedule",
            trained_on=np.array(self._trained_on),
            trees=np.frombuffer(trees, np.uint8),
            **self._examples.arrays(),
        )

    def restore(self, state: bytes) -> None:
        arrays = read_state("metaschedule", state)
        trees = arrays["trees"].tobytes()
        self._booster = load_booster(self._settings, trees) if trees else None
        self._examples = Examples.from_arrays(arrays)
        self._trained_on = int(arrays["trained_on"])
