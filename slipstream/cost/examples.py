"""What a model has learned from, and what it should have predicted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.cost.types import Example, Features


class Examples:
    """Every example so far, in the order it came. Programs that store nothing teach nothing and are left out."""

    def __init__(self, examples: Iterable[Example] = ()) -> None:
        self._all: list[Example] = []
        self._best: dict[str, float] = {}
        self.add(examples)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Example]:
        return iter(self._all)

    def add(self, examples: Iterable[Example]) -> None:
        for example in examples:
            if len(example.features):
                self._all.append(example)
                if _succeeded(example):
                    best = self._best.get(example.operator, math.inf)
                    self._best[example.operator] = min(best, example.seconds)

    def features(self, which: Sequence[int]) -> list[Features]:
        return [self._all[i].features for i in which]

    def labels(self, which: Sequence[int]) -> NDArray[np.float32]:
        """Speed relative to the operator's best so far: 1 for that one, 0 for a failure.

        They change as better programs are found, so they are computed when asked for.
        """
        return np.array([self._label(self._all[i]) for i in which], np.float32)

    def _label(self, example: Example) -> float:
        return self._best[example.operator] / example.seconds if _succeeded(example) else 0.0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For `write_state`."""
        return {
            "operators": np.array([example.operator for example in self._all], np.str_),
            "seconds": np.array([example.seconds for example in self._all], np.float64),
            "stores": np.array([len(example.features) for example in self._all], np.int64),
            "rows": np.concatenate([example.features for example in self._all] or [np.empty((0, 0), np.float32)]),
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> Examples:
        """What `arrays` was taken from."""
        rows = np.split(arrays["rows"], np.cumsum(arrays["stores"])[:-1]) if len(arrays["stores"]) else []
        whole = zip(arrays["operators"], rows, arrays["seconds"], strict=True)
        return Examples(Example(str(operator), features, float(seconds)) for operator, features, seconds in whole)


def _succeeded(example: Example) -> bool:
    return 0 < example.seconds < math.inf
