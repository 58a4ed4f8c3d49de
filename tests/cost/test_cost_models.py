"""Every cost model against the suite that ships with the product, and that those which learn do learn."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from slipstream.cost import CostModel, CostModelError
from slipstream.cost.accuracy import best_of_top, pair_accuracy
from slipstream.cost.incremental import Incremental
from slipstream.cost.metaschedule import MetaSchedule
from slipstream.cost.random import Random
from slipstream.plugins import Context, make, names
from slipstream.testing.cost_suite import CostModelSuite, synthetic_examples

LEARNERS = ("incremental", "metaschedule")


class TestIncremental(CostModelSuite):
    def make(self, context: Context) -> CostModel:
        return Incremental(context.seed, context.threads)


class TestMetaSchedule(CostModelSuite):
    def make(self, context: Context) -> CostModel:
        return MetaSchedule(context.seed, context.threads)


class TestRandom(CostModelSuite):
    def make(self, context: Context) -> CostModel:
        return Random(context.seed)

    def test_a_score_depends_on_seed_and_program_alone(self) -> None:
        asked = [example.features for example in synthetic_examples(20, seed=0)]
        model = self.make(Context(seed=1))
        first = model.score(asked)
        assert np.array_equal(first[::-1], model.score(asked[::-1]))
        assert len(set(first)) == len(first)
        assert not np.array_equal(first, self.make(Context(seed=2)).score(asked))


def accuracy(model: CostModel, seed: int) -> float:
    """On programs of one operator that it has not seen."""
    unseen = [example for example in synthetic_examples(200, seed) if example.operator == "matmul"]
    scores = model.score([example.features for example in unseen])
    return pair_accuracy(scores, np.array([example.seconds for example in unseen]))


@pytest.mark.parametrize("name", LEARNERS)
def test_ranks_programs_it_has_not_seen(name: str) -> None:
    model = make("cost", name, Context(seed=0))
    assert accuracy(model, seed=100) < 0.6
    for part in range(10):
        model.learn(synthetic_examples(32, seed=part))
    assert accuracy(model, seed=100) > 0.8


def test_incremental_fine_tunes_between_refits() -> None:
    """Pre-trained on one operator it knows something of the other, and more after fewer rounds than a refit needs."""
    examples = synthetic_examples(900, seed=7)
    other = [example for example in examples if example.operator == "convolution"]
    own = [example for example in examples if example.operator == "matmul"]
    model = make("cost", "incremental", Context(seed=0))
    model.learn(other)
    assert 0.6 < accuracy(model, seed=101) < 0.8
    for start in range(0, 192, 32):
        model.learn(own[start : start + 32])
    assert accuracy(model, seed=101) > 0.85


def test_a_state_of_another_model_is_refused() -> None:
    for wrote, reads in zip(names("cost"), reversed(names("cost")), strict=True):
        if wrote != reads:
            state = make("cost", wrote, Context(seed=0)).state()
            with pytest.raises(CostModelError, match=f"of the cost model '{wrote}', not of '{reads}'"):
                make("cost", reads, Context(seed=0)).restore(state)


@pytest.mark.timing
def test_a_round_of_fine_tuning_is_quick() -> None:
    model = make("cost", "incremental", Context(seed=0))
    model.learn(synthetic_examples(1000, seed=8))
    seconds = []
    for part in range(5):
        examples = synthetic_examples(32, seed=200 + part)
        began = time.process_time()
        model.learn(examples)
        seconds.append(time.process_time() - began)
    assert min(seconds) < 0.3


def test_xgboost_is_not_imported_before_it_is_needed() -> None:
    code = "import sys; from slipstream.plugins import Context, make; make('cost', 'random', Context()); "
    code += "print({'xgboost', 'tvm'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_pair_accuracy() -> None:
    seconds = np.array([1.0, 2.0, 3.0, 3.0])
    assert pair_accuracy(-seconds, seconds) == 1.0
    assert pair_accuracy(seconds, seconds) == 0.0
    assert pair_accuracy(np.zeros(4), seconds) == 0.5
    assert np.isnan(pair_accuracy(np.array([1.0]), np.array([1.0])))
    assert best_of_top(np.array([0.0, 3.0, 2.0, 1.0]), seconds, count=1) == 0.5
    assert best_of_top(np.array([0.0, 3.0, 2.0, 1.0]), seconds, count=4) == 1.0
