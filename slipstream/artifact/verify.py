"""Comparing compiled code with the reference on the same inputs, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slipstream.artifact.manifest import OutputCheck, Verification
from slipstream.artifact.partitioned import PartitionedExecutor
from slipstream.errors import VerificationError
from slipstream.frontends.inputs import Array, TensorSpec, feed_of
from slipstream.frontends.model import Model
from slipstream.frontends.output_files import arrays_of

SEEDS = 3
# Largest error allowed, relative to the largest value of the output: sums of thousands of rounded products
# differ by some thousand units in the last place when they are added in another order.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2, "tf32": 1e-2}
# Of a model that rounds to 8 bits on its way: of a value between two steps, rounding before decides which it gets.
_QUANTISED = 1e-2
# Many steps, each of which may go either way, add up: how far two right ways to compute a model are apart varies.
_SLACK_OF_STEPS = 2.0
# An output that is rounded to 8 bits itself may be one level off, whatever part of the largest value that is.
_ONE_STEP = 1.001
# Of an output in which nothing but zeros is expected: a sigmoid of large negative numbers is one, rounded.
_SCALE_OF_ZEROS = 1e-2
# What functions such as a sigmoid are wrong by, however small their result is.
_ROUNDING_OF_ONE = 5e-7
# An error of more than so many times what is allowed comes from no rounding.
_MOST_ROUNDING = 100


def verification_inputs(model: Model, given: dict[str, Array] | None) -> list[dict[str, Array]]:
    """`SEEDS` sets of random inputs; inputs in `given` keep the value the user chose: one set if all are given.

    `model` has one shape.
    """
    chosen = given or {}
    seeds = 1 if chosen and len(chosen) == len(model.inputs) else SEEDS
    return [feed_of(model.inputs, chosen, np.random.default_rng(seed)) for seed in range(seeds)]


def verify(
    model: Model,
    run: Callable[..., Sequence[Any]],
    feeds: list[dict[str, Array]],
    dtype: str = "float32",
    notes: tuple[str, ...] = (),
) -> Verification:
    """Compare `run`, which computes in `dtype`, with the model's reference; a mismatch is a `VerificationError` with a
    table. `notes` go into the result.

    Where two ways of the reference to compute the model differ by more than is allowed, as much is allowed here. Where
    a model was cut, what ONNX Runtime computes from the results of compiled parts may differ if each of these parts is
    right by itself: rounding decides which of two nearly equal scores is the larger.
    """
    expected = [list(map(arrays_of, outputs)) for outputs in model.reference.outputs(feeds)]
    actual = [list(map(arrays_of, run(feed))) for feed in feeds]
    allowed = [_tolerance(spec, model, dtype) for spec in model.outputs]
    checks = _compare_all(model, allowed, expected, actual)
    decisive: list[OutputCheck] = []
    if not all(map(_passes, checks)) and hasattr(model.reference, "outputs_without_optimisation"):
        other = [list(map(arrays_of, outputs)) for outputs in model.reference.outputs_without_optimisation(feeds)]
        slack = _SLACK_OF_STEPS if model.quantised else 1.0
        inherent = _compare_all(model, allowed, expected, other)
        widened = [_widen(*pair, slack) for pair in zip(checks, inherent, strict=True)]
        notes += tuple(
            f"output {wide.name!r} may differ by {wide.tolerance:.1e}: with and without its optimisations "
            f"{model.reference.name} differs from itself by {'half ' if slack > 1 else ''}as much"
            for check, wide in zip(checks, widened, strict=True)
            if not _passes(check) and _passes(wide)
        )
        checks = widened
    if not all(map(_passes, checks)) and isinstance(run, PartitionedExecutor):
        of_parts = _compare_parts(model, run, feeds, dtype)
        if all(map(_passes, of_parts)):
            names = ", ".join(repr(check.name) for check in checks if not _passes(check))
            notes += (
                f"the compiled parts match {model.reference.name} one by one; what it decides from their results may "
                f"differ where two are nearly equal, and did in {names}",
            )
            checks = [*filter(_passes, checks), *of_parts]
        decisive = of_parts
    if not all(map(_passes, checks)):
        error = VerificationError(_table(model, checks))
        error.may_be_rounding = all(map(_may_be_rounding, decisive or checks))
        raise error
    return Verification(model.reference.name, len(feeds), tuple(checks), notes)


def worst_difference(model: Model, expected: Sequence[Any], actual: Sequence[Any]) -> tuple[str, float, float]:
    """The output that differs most for what is allowed: its name, its relative error and the largest allowed."""
    allowed = [_tolerance(spec, model, "float32") for spec in model.outputs]
    checks = _compare_all(model, allowed, [list(map(arrays_of, expected))], [list(map(arrays_of, actual))])
    worst = max(checks, key=lambda check: check.max_relative - check.tolerance)
    return worst.name, worst.max_relative, worst.tolerance


def merged(verifications: Sequence[Verification]) -> Verification:
    """One for all variants of a model: each output at its worst."""
    worst: dict[str, OutputCheck] = {}
    for check in (check for verification in verifications for check in verification.outputs):
        if check.name not in worst or check.max_relative > worst[check.name].max_relative:
            worst[check.name] = check
    first = verifications[0]
    notes = dict.fromkeys(note for verification in verifications for note in verification.notes)
    return Verification(first.reference, first.seeds, tuple(worst.values()), tuple(notes))


def _passes(check: OutputCheck) -> bool:
    return check.max_relative <= check.tolerance


def _may_be_rounding(check: OutputCheck) -> bool:
    """Integers that depend on floats, such as the place of a maximum, differ by any amount if they differ at all."""
    return not check.tolerance or check.max_relative <= _MOST_ROUNDING * check.tolerance


def _widen(check: OutputCheck, inherent: OutputCheck, slack: float) -> OutputCheck:
    """The check with the error allowed by which the reference differs from itself, within limits."""
    if _passes(check):
        return check
    most = slack * inherent.max_relative
    if check.max_absolute > _ROUNDING_OF_ONE:
        most = min(most, _MOST_ROUNDING * check.tolerance)
    return replace(check, tolerance=max(check.tolerance, most))


def _tolerance(output: TensorSpec, model: Model, dtype: str) -> float:
    """A float output is as exact as the least exact float on its way; integers have to be equal."""
    # A sequence or a map goes by its ONNX type, such as seq(tensor(float)).
    own = TOLERANCES.get(output.dtype, TOLERANCES["float32"] if "float" in output.dtype else 0.0)
    if not own:
        return 0.0
    of_products = TOLERANCES[dtype] if dtype != "float32" else 0.0
    of_steps = _QUANTISED if model.quantised else 0.0
    return max(own, of_products, of_steps, *(TOLERANCES.get(spec.dtype, 0.0) for spec in model.inputs))


Arrays = list[list[list[Array]]]
"""By set of inputs and by output, the arrays of the output."""


def _compare_all(model: Model, allowed: Sequence[float], expected: Arrays, actual: Arrays) -> list[OutputCheck]:
    steps = model.output_steps or (0.0,) * len(model.outputs)
    return [
        _compare(spec.name, tolerance, [(e[place], a[place]) for e, a in zip(expected, actual, strict=True)], step)
        for place, (spec, tolerance, step) in enumerate(zip(model.outputs, allowed, steps, strict=True))
    ]


def _compare_parts(
    model: Model, run: PartitionedExecutor, feeds: list[dict[str, Array]], dtype: str
) -> list[OutputCheck]:
    """The results of each compiled part on the inputs that the reference has for it."""
    checks = []
    reference: Any = model.reference  # ONNX Runtime: nothing else is ever cut
    for part, compiled in run.compiled:
        inner = [spec.name for spec in (*part.inputs, *part.outputs) if spec.name not in feeds[0]]
        values = [{**feed, **found} for feed, found in zip(feeds, reference.values(feeds, inner), strict=True)]
        pairs = [(own, compiled(*(own[spec.name] for spec in part.inputs))) for own in values]
        for spec in part.outputs:
            tolerance = _tolerance(spec, model, dtype)
            arrays = [(arrays_of(own[spec.name]), arrays_of(results[spec.name])) for own, results in pairs]
            checks.append(_compare(spec.name, tolerance, arrays))
    return checks


def _compare(
    name: str, tolerance: float, pairs: Sequence[tuple[list[Array], list[Array]]], step: float = 0.0
) -> OutputCheck:
    worst_absolute = worst_relative = 0.0
    for expected, actual in pairs:
        if [array.shape for array in expected] != [array.shape for array in actual]:
            return OutputCheck(name, float("inf"), float("inf"), tolerance)
        for absolute, relative in map(_distance, expected, actual):
            worst_absolute, worst_relative = max(worst_absolute, absolute), max(worst_relative, relative)
            if 0 < absolute <= step * _ONE_STEP:
                tolerance = max(tolerance, relative)
    return OutputCheck(name, worst_absolute, worst_relative, tolerance)


def _distance(expected: Array, actual: Array) -> tuple[float, float]:
    """(largest difference, the same relative to the largest finite value expected)."""
    if expected.size == 0:
        return 0.0, 0.0
    if expected.dtype.kind not in "biufV":  # text
        return (0.0, 0.0) if np.array_equal(expected, actual) else (float("inf"), float("inf"))
    e, a = expected.astype(np.float64), actual.astype(np.float64)
    same = (e == a) | (np.isnan(e) & np.isnan(a))
    if same.all():
        return 0.0, 0.0
    difference = np.abs(e - a)[~same]
    if not np.isfinite(difference).all():
        return float("inf"), float("inf")
    scale = float(np.abs(e[np.isfinite(e)]).max(initial=0.0)) or _SCALE_OF_ZEROS
    absolute = float(difference.max())
    return absolute, absolute / scale


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
