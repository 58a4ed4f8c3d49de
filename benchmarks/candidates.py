"""Real operators of ResNet-18 and BERT, and programs for them drawn at random from MetaSchedule's design space."""

from __future__ import annotations

import numpy as np

from slipstream.frontends import load_model
from slipstream.graph.operators import Operator, extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import Target
from slipstream.measure.types import Candidate
from slipstream.program.space import StockSpace

# Kind of operator -> (model of the zoo, how `Operator.name` begins).
OPERATORS: dict[str, tuple[str, str]] = {
    "conv3x3": ("resnet18", "conv2d 3x3 128→128 28x28 + add + relu"),
    "conv1x1": ("resnet18", "conv2d 1x1/2 128→256 14x14 + add"),
    "matmul": ("bert_base", "matmul 128x768x768 + add"),
}


def pick_operators(target: Target, kinds: tuple[str, ...] = tuple(OPERATORS)) -> dict[str, Operator]:
    """The operators named in `OPERATORS`, by kind."""
    models = {OPERATORS[kind][0] for kind in kinds}
    known = {(model, operator.name): operator for model in models for operator in operators_of(model, target)}
    return {kind: known[OPERATORS[kind]] for kind in kinds}


def operators_of(model: str, target: Target) -> list[Operator]:
    """The operators of a zoo model, prepared for `target`."""
    return extract_operators(prepare(load_model(f"zoo:{model}").module, target)[0])


def sample_programs(operator: Operator, target: Target, count: int, rng: np.random.Generator) -> list[Candidate]:
    """`count` different valid programs: a random sketch with random decisions each."""
    space = StockSpace(operator.key, operator.func, target)
    programs: dict[str, Candidate] = {}
    while len(programs) < count:
        realized = space.realize(space.draw(rng, space.stock))
        if realized is not None:
            label = f"{operator.name} #{len(programs)}"
            programs.setdefault(realized.text, Candidate(operator.key, realized.text, label))
    return list(programs.values())
