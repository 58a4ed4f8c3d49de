"""Boosted trees over stores, whose sum over a program's stores is the score of the program.

A tree sees one store at a time; only their total is compared with what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.cost.types import Features

if TYPE_CHECKING:
    from xgboost import Booster


class PackSum:
    """The stores of several programs as one matrix, with the label of its program for every store."""

    def __init__(self, features: Sequence[Features], labels: NDArray[np.float32] | None, threads: int) -> None:
        from xgboost import DMatrix

        stores = [len(rows) for rows in features]
        self._programs = len(features)
        self._program_of = np.repeat(np.arange(len(features)), stores)
        self.labels = None if labels is None else np.repeat(labels, stores)
        self.matrix = DMatrix(np.concatenate(features), nthread=threads)

    def totals(self, booster: Booster) -> NDArray[np.float64]:
        """The score of every program."""
        return self._sum(booster.predict(self.matrix, output_margin=True))

    def residuals(self, booster: Booster) -> NDArray[np.float64]:
        """Score less label of its program, for every store."""
        assert self.labels is not None
        # `training` lets XGBoost reuse its last prediction and add the newest tree only.
        totals = self._sum(booster.predict(self.matrix, output_margin=True, training=True))
        return totals[self._program_of] - self.labels

    def _sum(self, margins: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.bincount(self._program_of, margins, self._programs).astype(np.float64)


def new_booster(settings: Mapping[str, Any], data: PackSum) -> Booster:
    """A model without trees, for data as wide as this."""
    from xgboost import Booster

    return Booster(dict(settings), cache=[data.matrix])


def load_booster(settings: Mapping[str, Any], saved: bytes) -> Booster:
    """The model that `save_raw` wrote."""
    from xgboost import Booster

    booster = Booster(model_file=bytearray(saved))
    booster.set_param(dict(settings))  # a saved model has its trees, not the settings for the next one
    return booster


def boost(booster: Booster, data: PackSum, *, rounds: int, patience: int) -> None:
    """Add up to `rounds` trees; stop after `patience` that did not lower the error on `data`.

    The loss is the squared error, weighted with the label: it matters little how slow a slow program is.
    """
    weights = data.labels
    assert weights is not None
    least, since = math.inf, 0
    residuals = data.residuals(booster)
    for _ in range(rounds):
        booster.boost(data.matrix, booster.num_boosted_rounds(), grad=residuals * weights, hess=weights)
        residuals = data.residuals(booster)
        error = round(math.sqrt(np.mean(np.square(residuals))), 6)  # below that is no progress
        least, since = (error, 0) if error < least else (least, since + 1)
        if since >= patience:
            return


def score(booster: Booster, features: Sequence[Features], threads: int) -> NDArray[np.float64]:
    """The score of every program; one without stores has 0, what a failure is labelled with."""
    if not any(map(len, features)):
        return np.zeros(len(features))
    return PackSum(features, None, threads).totals(booster)
