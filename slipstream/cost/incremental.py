"""Code diffusion's cost model: pre-trained on the operators tuned first, fine-tuned on the others.

Boosting goes on where it stopped: new examples, and old ones replayed so that they are not forgotten, are fitted
with a few more trees. That costs the same however many examples there are already.
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

# Shallower and more cautious than TVM's: trees that are added to fit a few noisy examples overfit easily.
_SETTINGS = {"max_depth": 6, "gamma": 0.001, "min_child_weight": 0.0, "lambda": 5.0, "eta": 0.1, "max_bin": 64}
_LEAST_NEW = 8
_MOST_REPLAYED = 512
_FINE_TUNING_TREES = 4
_REFIT_GROWTH = 2.0
_REFIT_TREES = 100
_MOST_REFITTED = 4096


class Incremental:
    """Scores are random until there are eight examples.

    Fine-tuned trees pile up and the first ones were fitted to little, so all is fitted anew whenever the examples
    have doubled: that is rare enough to add little to the cost of an example. It is bounded by counts, not by a clock,
    so that the same examples always give the same scores.
    """

    def __init__(self, seed: int, threads: int) -> None:
        self._settings = _SETTINGS | {"nthread": threads}
        self._seed = seed
        self._threads = threads
        self._warm_up = Random(seed)
        self._examples = Examples()
        self._learned = 0
        self._refitted = 0
        self._booster: Booster | None = None

    def score(self, features: Sequence[Features]) -> NDArray[np.float64]:
        if self._booster is None:
            return self._warm_up.score(features)
        return score(self._booster, features, self._threads)

    def learn(self, examples: Sequence[Example]) -> None:
        self._examples.add(examples)
        count = len(self._examples)
        if count - self._learned < _LEAST_NEW:
            return
        if self._booster is None or count >= _REFIT_GROWTH * self._refitted:
            data = self._data(self._sample(0, count, _MOST_REFITTED))
            self._booster = new_booster(self._settings, data)
            boost(self._booster, data, rounds=_REFIT_TREES, patience=_REFIT_TREES)
            self._refitted = count
        else:
            new = range(self._learned, count)
            data = self._data([*self._sample(0, self._learned, _MOST_REPLAYED), *new])
            boost(self._booster, data, rounds=_FINE_TUNING_TREES, patience=_FINE_TUNING_TREES)
        self._learned = count

    def _sample(self, start: int, stop: int, most: int) -> list[int]:
        """Numbers of examples, drawn by a generator that a restored model seeds in the same way."""
        if stop - start <= most:
            return list(range(start, stop))
        drawn = np.random.default_rng([self._seed, stop]).choice(stop - start, most, replace=False)
        return [start + int(i) for i in np.sort(drawn)]

    def _data(self, which: Sequence[int]) -> PackSum:
        return PackSum(self._examples.features(which), self._examples.labels(which), self._threads)

    def state(self) -> bytes:
        trees = b"" if self._booster is None else self._booster.save_raw("ubj")
        return write_state(
            "incremental",
            learned=np.array(self._learned),
            refitted=np.array(self._refitted),
            trees=np.frombuffer(trees, np.uint8),
            **self._examples.arrays(),
        )

    def restore(self, state: bytes) -> None:
        arrays = read_state("incremental", state)
        trees = arrays["trees"].tobytes()
        self._booster = load_booster(self._settings, trees) if trees else None
        self._examples = Examples.from_arrays(arrays)
        self._learned = int(arrays["learned"])
        self._refitted = int(arrays["refitted"])
