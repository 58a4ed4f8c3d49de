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
