"""Proximal policy optimisation (Schulman et al., 2017) of walks over knobs: Chameleon's adaptive exploration.

An observation is a row of positions between 0 and 1, an action moves every knob down, not at all or up. Actor and
critic share two layers of 20 tanh units. The constants are those of Chameleon's authors' code. NumPy alone: networks
of this size take longer to hand to a framework than to compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_UNITS = 20
_STEP, _DISCOUNT, _TRACE, _CLIP = 1e-3, 0.9, 0.99, 0.2
_VALUE_WEIGHT, _ENTROPY_WEIGHT = 1.0, 0.3
_EPOCHS, _BATCH = 3, 64
_MOVES = 3


@dataclass
class Walk:
    """What several walkers saw, did and were rewarded with: arrays whose first two axes are step and walker."""

    seen: list[Array] = field(default_factory=list)
    moves: list[NDArray[np.int64]] = field(default_factory=list)
    odds: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)


class Policy:
    """Starts from small random weights: all moves are about as likely."""

    def __init__(self, knobs: int, rng: np.random.Generator) -> None:
        self._knobs, self._rng = knobs, rng
        widths = {"first": (knobs, _UNITS), "second": (_UNITS, _UNITS), "value": (_UNITS, 1)}
        widths["moves"] = (_UNITS, knobs * _MOVES)
        scale = {"moves": 0.01}
        self._weights = {
            name: np.vstack([rng.normal(0, scale.get(name, 1.0) / rows**0.5, (rows, columns)), np.zeros((1, columns))])
            for name, (rows, columns) in widths.items()
        }
        self._mean = {name: np.zeros_like(weight) for name, weight in self._weights.items()}
        self._square = {name: np.zeros_like(weight) for name, weight in self._weights.items()}
        self._updates = 0

    def move(self, seen: Array, walk: Walk) -> NDArray[np.int64]:
        """A move (-1, 0 or 1) of every knob for each row of `seen`, noted in `walk`."""
        _, _, log_odds, value = self._forward(seen)
        # Gumbel's trick: the highest of perturbed log odds is a draw from them.
        chosen = np.argmax(log_odds + self._rng.gumbel(size=log_odds.shape), axis=-1)
        walk.seen.append(seen)
        walk.moves.append(chosen)
        walk.odds.append(_of(log_odds, chosen))
        walk.values.append(value)
        return np.asarray(chosen - 1)

    def learn(self, walk: Walk, rewards: Array) -> None:
        """Change the policy towards moves after which the rewards (step, walker) were higher than expected."""
        values = np.array(walk.values)
        following = np.vstack([values[1:], np.zeros((1, values.shape[1]))])
        errors = rewards + _DISCOUNT * following - values
        advantage = np.zeros_like(errors)
        running = np.zeros(errors.shape[1])
        for step in range(len(errors) - 1, -1, -1):
            running = errors[step] + _DISCOUNT * _TRACE * running
            advantage[step] = running
        expected = (advantage + values).ravel()
        advantage = (advantage.ravel() - advantage.mean()) / (advantage.std() + 1e-8)
        seen, moves, odds = np.concatenate(walk.seen), np.concatenate(walk.moves), np.concatenate(walk.odds)
        for _ in range(_EPOCHS):
            order = self._rng.permutation(len(seen))
            for start in range(0, len(order), _BATCH):
                at = order[start : start + _BATCH]
                self._update(seen[at], moves[at], odds[at], advantage[at], expected[at])

    def _forward(self, seen: Array) -> tuple[Array, Array, Array, Array]:
        """Both hidden layers, the log odds (row, knob, move) and the value of each row."""
        first = np.tanh(_with_one(seen) @ self._weights["first"])
        second = np.tanh(_with_one(first) @ self._weights["second"])
        raw = (_with_one(second) @ self._weights["moves"]).reshape(len(seen), self._knobs, _MOVES)
        raw -= raw.max(axis=-1, keepdims=True)
        log_odds = raw - np.log(np.exp(raw).sum(axis=-1, keepdims=True))
        return first, second, log_odds, (_with_one(second) @ self._weights["value"])[:, 0]

    def _update(self, seen: Array, moves: NDArray[np.int64], odds: Array, advantage: Array, expected: Array) -> None:
        """One step of Adam on the clipped surrogate, the error of the values and the entropy."""
        first, second, log_odds, value = self._forward(seen)
        count = len(seen)
        share = np.exp(log_odds)
        ratio = np.exp(_of(log_odds, moves) - odds)
        # Beyond the clip in the direction of the advantage the surrogate is flat.
        flat = np.where(advantage > 0, ratio > 1 + _CLIP, ratio < 1 - _CLIP)
        slope = np.where(flat, 0.0, advantage * ratio)[:, None, None]
        entropy = -(share * log_odds).sum(axis=-1, keepdims=True)
        to_moves = slope * (np.eye(_MOVES)[moves] - share) - _ENTROPY_WEIGHT / self._knobs * share * (
            log_odds + entropy
        )
        to_moves = -to_moves.reshape(count, -1) / count
        to_value = 2 * _VALUE_WEIGHT * (value - expected)[:, None] / count
        back = to_moves @ self._weights["moves"][:-1].T + to_value @ self._weights["value"][:-1].T
        to_second = back * (1 - second**2)
        to_first = to_second @ self._weights["second"][:-1].T * (1 - first**2)
        self._adam(
            {
                "first": _with_one(seen).T @ to_first,
                "second": _with_one(first).T @ to_second,
                "moves": _with_one(second).T @ to_moves,
                "value": _with_one(second).T @ to_value,
            }
        )

    def _adam(self, slopes: dict[str, Array]) -> None:
        self._updates += 1
        for name, slope in slopes.items():
            self._mean[name] = 0.9 * self._mean[name] + 0.1 * slope
            self._square[name] = 0.999 * self._square[name] + 0.001 * slope**2
            mean = self._mean[name] / (1 - 0.9**self._updates)
            square = self._square[name] / (1 - 0.999**self._updates)
            self._weights[name] -= _STEP * mean / (np.sqrt(square) + 1e-5)


def _with_one(rows: Array) -> Array:
    """A column of ones for the offsets, which are the last row of a layer's weights."""
    return np.hstack([rows, np.ones((len(rows), 1))])


def _of(log_odds: Array, moves: NDArray[np.int64]) -> Array:
    """The log probability of the moves of each row, all knobs together."""
    return np.asarray(np.take_along_axis(log_odds, moves[..., None], axis=-1)[..., 0].sum(axis=-1))
