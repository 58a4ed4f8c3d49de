"""The shapes of a session's models: what each calls, and how fast it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.frontends.inputs import TensorSpec
from slipstream.frontends.model import Model
from slipstream.frontends.shape_variants import variant_labels
from slipstream.session.events import OperatorProgress, Snapshot

Calls = dict[str, dict[str, int]]
"""By label of a shape, or of one of several models: how often each operator is called, by key. Empty for one model of
one shape."""


@dataclass(frozen=True)
class ShapeLatency:
    """One shape, or one of several models: sums over its operators with their default and best programs; `end_to_end`
    is a run of the compiled model, None before it is compiled. In the sum of all it counts `weight` times."""

    shape: str
    start: float
    latency: float
    end_to_end: float | None = None
    weight: int = 1


def modules_by_variant(model: Model, prepared: Sequence[Any]) -> dict[tuple[TensorSpec, ...], Sequence[Any]]:
    """The prepared modules of each variant, by its inputs."""
    found, start = {}, 0
    for variant in model.shape_variants:
        end = start + len(variant.compiled_parts)
        found[variant.inputs] = prepared[start:end]
        start = end
    return found


def calls_by_shape(model: Model, prepared: Sequence[Any]) -> Calls:
    """The label of the only shape of a model is empty."""
    from slipstream.graph.operators import count_calls

    modules = modules_by_variant(model, prepared).values()
    return {label: count_calls(*own) for label, own in zip(variant_labels(model), modules, strict=True)}


def counterparts(calls: Calls, kinds: Mapping[str, tuple[str, ...]]) -> dict[str, frozenset[str]]:
    """By key: the same operator of the model in its other shapes. Empty if their operators do not correspond."""
    orders = [list(own) for own in calls.values()]
    if not orders or len({len(order) for order in orders}) > 1:
        return {}
    found: dict[str, frozenset[str]] = {}
    for same in zip(*orders, strict=True):
        if len({kinds[key] for key in same}) > 1:
            return {}
        found |= {key: found.get(key, frozenset()) | set(same) - {key} for key in same}
    return found


def importance(calls: Calls, flops: Mapping[str, int]) -> dict[str, float]:
    """By key: how much more, or less, a second of the operator counts than its calls say, when slots are given.

    A second of a small batch is a larger part of its latency than one of a large batch. Shapes count alike: each as if
    it had as many operations as all have on average.
    """
    works = {label: sum(times * flops.get(key, 0) for key, times in own.items()) for label, own in calls.items()}
    if len(works) < 2 or not all(works.values()):
        return {}
    average = sum(works.values()) / len(works)
    counted: dict[str, tuple[int, float]] = {}
    for label, own in calls.items():
        for key, times in own.items():
            number, weighted = counted.get(key, (0, 0.0))
            counted[key] = number + times, weighted + times * average / works[label]
    return {key: weighted / number for key, (number, weighted) in counted.items()}


def shape_latencies(
    calls: Calls,
    operators: Sequence[OperatorProgress],
    end_to_end: Mapping[str, float] | None = None,
    weights: Mapping[str, int] | None = None,
) -> tuple[ShapeLatency, ...]:
    """How fast each shape is; operators that were never timed do not count, and infinite if none was."""
    rows = {row.key: row for row in operators if math.isfinite(row.best)}

    def of_shape(shape: str, own: Mapping[str, int]) -> ShapeLatency:
        timed = [(count, rows[key]) for key, count in own.items() if key in rows]
        start = sum(count * row.start for count, row in timed) if timed else math.inf
        latency = sum(count * row.best for count, row in timed) if timed else math.inf
        return ShapeLatency(shape, start, latency, (end_to_end or {}).get(shape), (weights or {}).get(shape, 1))

    return tuple(of_shape(shape, own) for shape, own in calls.items())


def latencies_now(snapshot: Snapshot) -> tuple[ShapeLatency, ...]:
    """Those of a session under way; nothing until every operator has a time, and of one model of one shape."""
    if not math.isfinite(snapshot.latency):
        return ()
    return shape_latencies(snapshot.calls, snapshot.operators, weights=snapshot.weights)
