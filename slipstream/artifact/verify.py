"""Comparing compiled code with the reference on the same inputs, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from slipstream.artifact.manifest import OutputCheck, Verification
from slipstream.errors import InputError, VerificationError
from slipstream.frontends.inputs import Array, TensorSpec, random_inputs
from slipstream.frontends.model import Model

SEEDS = 3
# Largest error allowed, relative to the largest value of the output: sums of thousands of rounded products
# differ by some thousand units in the last place when they are added in another order.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def verification_inputs(model: Model, given: dict[str, Array] | None) -> list[dict[str, Array]]:
    """`SEEDS` sets of random inputs; inputs in `given` keep the value the user chose."""
    given = given or {}
    specs = {spec.name: spec for spec in model.inputs}
    for name, value in given.items():
        if name not in specs:
            raise InputError(f"--input-data has {name!r}, the model takes {', '.join(map(str, model.inputs))}")
        expected = (specs[name].shape, specs[name].dtype)
        if (value.shape, str(value.dtype)) != expected:
            got = f"{value.dtype}[{'x'.join(map(str, value.shape))}]"
            raise InputError(f"--input-data: {name!r} is {got}, the model takes {specs[name]}")
    return [{**random_inputs(model.inputs, np.random.default_rng(seed)), **given} for seed in range(SEEDS)]


def verify(
    model: Model, run: Callable[..., Sequence[Any]], feeds: list[dict[str, Array]], dtype: str = "float32"
) -> Verification:
    """Compare `run`, which computes in `dtype`, with the model's reference; a mismatch is a `VerificationError` with a
    table.
    """
    expected = model.reference.outputs(feeds)
    actual = [[np.asarray(value) for value in run(feed)] for feed in feeds]
    checks = []
    for position, spec in enumerate(model.outputs):
        pairs = [(e[position], a[position]) for e, a in zip(expected, actual, strict=True)]
        checks.append(_compare(spec.name, _tolerance(spec, model.inputs, dtype), pairs))
    if any(not check.max_relative <= check.tolerance for check in checks):
        raise VerificationError(_table(model, checks))
    return Verification(model.reference.name, len(feeds), tuple(checks))


def _tolerance(output: TensorSpec, inputs: Sequence[TensorSpec], dtype: str) -> float:
    """A float output is as exact as the least exact float on its way; integers have to be equal."""
    if output.dtype not in TOLERANCES:
        return 0.0
    of_products = TOLERANCES[dtype] if dtype != "float32" else 0.0
    return max(of_products, *(TOLERANCES.get(spec.dtype, 0.0) for spec in (output, *inputs)))


def _compare(name: str, tolerance: float, pairs: list[tuple[Array, Array]]) -> OutputCheck:
    worst_absolute = worst_relative = 0.0
    for expected, actual in pairs:
        if expected.shape != actual.shape:
            return OutputCheck(name, float("inf"), float("inf"), tolerance)
        absolute, relative = _distance(expected, actual)
        worst_absolute, worst_relative = max(worst_absolute, absolute), max(worst_relative, relative)
    return OutputCheck(name, worst_absolute, worst_relative, tolerance)


def _distance(expected: Array, actual: Array) -> tuple[float, float]:
    """(largest difference, the same relative to the largest finite value expected)."""
    if expected.size == 0:
        return 0.0, 0.0
    e, a = expected.astype(np.float64), actual.astype(np.float64)
    same = (e == a) | (np.isnan(e) & np.isnan(a))
    if same.all():
        return 0.0, 0.0
    difference = np.abs(e - a)[~same]
    if not np.isfinite(difference).all():
        return float("inf"), float("inf")
    scale = np.abs(e[np.isfinite(e)]).max(initial=0.0)
    absolute = float(difference.max())
    return absolute, absolute / float(scale) if scale else float("inf")


def _table(model: Model, checks: list[OutputCheck]) -> str:
    rows = sorted(checks, key=lambda check: -check.max_relative)[:10]
    width = max(len(row.name) for row in rows)
    lines = [
        f"the compiled model does not match {model.reference.name}; nothing was written. Worst outputs:",
        f"  {'output':<{width}}  largest error  relative   allowed",
    ]
    lines += [
        f"  {row.name:<{width}}  {row.max_absolute:<13.3g}  {row.max_relative:<8.2g}  {row.tolerance:.2g}"
        for row in rows
    ]
    return "\n".join(lines)
