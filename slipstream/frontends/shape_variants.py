"""One model for several shapes: a `Model` whose `variants` are the same model at one shape each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from slipstream.errors import ShapeError
from slipstream.frontends.inputs import Array, TensorSpec
from slipstream.frontends.model import Model


def combine(models: Sequence[Model]) -> Model:
    """One model of the same model at several shapes; compiled, it takes inputs of any of them.

    A dimension that differs between the models is -1 in the inputs and outputs of the result.
    """
    first = models[0]
    if len(models) == 1:
        return first
    shapes = [{spec.name: list(spec.shape) for spec in model.inputs} for model in models]
    as_read = [model.options.get("shapes") or own for model, own in zip(models, shapes, strict=True)]
    content = repr([(model.fingerprint, own) for model, own in zip(models, shapes, strict=True)])
    digest = hashlib.blake2b(content.encode(), digest_size=16)
    if any(one in shapes[:number] for number, one in enumerate(shapes)):
        raise ShapeError("two variants of the model have inputs of the same shapes: give each shape once")
    return Model(
        name=first.name,
        source=first.source,
        module=None,
        inputs=merged_specs([model.inputs for model in models], "input"),
        outputs=merged_specs([model.outputs for model in models], "output"),
        fingerprint=digest.hexdigest(),
        reference=first.reference,
        options={**first.options, "shapes": as_read},
        quantised=any(model.quantised for model in models),
        output_steps=first.output_steps,
        variants=tuple(models),
    )


def merged_specs(variants: Sequence[Sequence[TensorSpec]], what: str) -> tuple[TensorSpec, ...]:
    """The tensors of all variants, with -1 for a dimension that differs."""
    if len({len(specs) for specs in variants}) > 1:
        raise ShapeError(f"the model has other {what}s for other shapes: tune them apart")
    merged = []
    for specs in zip(*variants, strict=True):
        first = specs[0]
        if any(
            (spec.name, spec.dtype, len(spec.shape)) != (first.name, first.dtype, len(first.shape)) for spec in specs
        ):
            found = ", ".join(map(str, dict.fromkeys(map(str, specs))))
            raise ShapeError(f"the {what} {first.name!r} is another one for other shapes ({found}): tune them apart")
        extents = zip(*(spec.shape for spec in specs), strict=True)
        shape = tuple(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in extents)
        merged.append(TensorSpec(first.name, shape, first.dtype, first.limit))
    return tuple(merged)


def shape_labels(variants: Sequence[Sequence[TensorSpec]]) -> list[str]:
    """What people read of the inputs of each variant: the shapes that differ, with names where one would not do."""
    if len(variants) == 1:
        return [""]
    columns = list(zip(*variants, strict=True))
    varied = [specs for specs in columns if len({spec.shape for spec in specs}) > 1]
    alike = all([spec.shape for spec in specs] == [spec.shape for spec in varied[0]] for specs in varied)
    return [
        _extents(row[0].shape) if alike else ", ".join(f"{spec.name} {_extents(spec.shape)}" for spec in row)
        for row in zip(*varied, strict=True)
    ]


def variant_labels(model: Model) -> list[str]:
    """The labels of a model's variants; nothing for the only one."""
    return shape_labels([variant.inputs for variant in model.shape_variants])


def fit_arrays(arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Data that was given for one shape, repeated or cut to that of a variant; other differences stay."""
    wanted = {spec.name: spec.shape for spec in specs}
    return {name: _fit(array, wanted[name]) if name in wanted else array for name, array in arrays.items()}


def _fit(array: Array, shape: tuple[int, ...]) -> Array:
    if array.ndim != len(shape) or 0 in array.shape:
        return array
    for axis, extent in enumerate(shape):
        if extent != array.shape[axis]:
            array = np.take(array, np.arange(extent) % array.shape[axis], axis)
    return array


def _extents(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
