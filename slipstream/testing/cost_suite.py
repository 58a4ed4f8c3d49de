"""What every cost model must do. Subclass `CostModelSuite` in a test file, say how to make yours, and run pytest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from slipstream.cost.features import WIDTH
from slipstream.cost.types import CostModel, Example, Features
from slipstream.errors import SlipstreamError
from slipstream.plugins import Context

_STORES = {"convolution": 3, "matmul": 2}


def synthetic_examples(count: int, seed: int) -> list[Example]:
    """Programs of two operators in turn; their times follow from three columns of a dozen, two of them the same."""
    rng = np.random.default_rng(seed)
    examples = []
    for number in range(count):
        kind = number % len(_STORES)
        operator = list(_STORES)[kind]
        rows = np.zeros((_STORES[operator], WIDTH), np.float32)
        rows[:, :12] = rng.integers(0, 8, 12)
        rows[:, 12] = np.arange(len(rows))
        rows[:, 13] = kind
        cycles = 10 + 20 * rows[0, 0] + 10 * rows[0, 1] + 5 * (rows[0, 2 + kind] - 4) ** 2
        examples.append(Example(operator, rows, 1e-5 * len(rows) * float(cycles)))
    return examples


def _features(examples: Sequence[Example]) -> list[Features]:
    return [example.features for example in examples]


class CostModelSuite:
    """Subclass it and say how to make a model; the context's seed decides whatever is random in it."""

    def make(self, context: Context) -> CostModel:
        raise NotImplementedError

    def test_one_finite_score_for_every_program(self) -> None:
        model = self.make(Context(seed=0))
        examples = synthetic_examples(160, seed=1)
        for _ in range(2):
            scores = model.score(_features(examples))
            assert scores.shape == (len(examples),)
            assert scores.dtype == np.float64
            assert np.all(np.isfinite(scores))
            assert model.score([]).shape == (0,)
            model.learn(examples)

    def test_the_same_examples_give_the_same_scores(self) -> None:
        first, second = self.make(Context(seed=3)), self.make(Context(seed=3))
        asked = _features(synthetic_examples(50, seed=2))
        for part in range(4):
            examples = synthetic_examples(60, seed=10 + part)
            for model in (first, second):
                model.learn(examples)
            assert np.array_equal(first.score(asked), second.score(asked))

    def test_a_restored_model_goes_on_exactly_as_before(self) -> None:
        model = self.make(Context(seed=4))
        asked = _features(synthetic_examples(50, seed=3))
        for part in range(6):
            restored = self.make(Context(seed=4))
            restored.restore(model.state())
            assert np.array_equal(restored.score(asked), model.score(asked))
            examples = synthetic_examples(5 + 20 * part, seed=20 + part)
            for each in (model, restored):
                each.learn(examples)
            assert np.array_equal(restored.score(asked), model.score(asked))
            assert restored.state() == model.state()

    def test_programs_that_teach_nothing_do_no_harm(self) -> None:
        model = self.make(Context(seed=5))
        good = synthetic_examples(120, seed=4)
        empty = np.empty((0, WIDTH), np.float32)
        model.learn([])
        for seconds in (math.inf, math.nan, 0.0):
            model.learn([Example("broken", example.features, seconds) for example in good[:10]])
        model.learn([Example("matmul", empty, 1e-3), *good])
        assert np.all(np.isfinite(model.score([empty, good[0].features, empty])))
        assert np.all(np.isfinite(model.score([empty])))

    def test_the_examples_are_left_as_they_were(self) -> None:
        model = self.make(Context(seed=6))
        examples = synthetic_examples(120, seed=5)
        before = [example.features.copy() for example in examples]
        model.learn(examples)
        model.score(_features(examples))
        assert all(np.array_equal(a, b) for a, b in zip(before, _features(examples), strict=True))

    def test_a_damaged_state_is_refused_and_nothing_is_lost(self) -> None:
        model, twin = self.make(Context(seed=7)), self.make(Context(seed=7))
        examples = synthetic_examples(120, seed=6)
        for each in (model, twin):
            each.learn(examples)
        state = model.state()
        middle = len(state) // 2
        flipped = state[:middle] + bytes([state[middle] ^ 0xFF]) + state[middle + 1 :]
        for damaged in (b"", b"no state at all", state[:middle], flipped):
            with pytest.raises(SlipstreamError, match="state"):
                model.restore(damaged)
        assert np.array_equal(model.score(_features(examples)), twin.score(_features(examples)))
