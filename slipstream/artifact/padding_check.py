"""Whether a model computes the same from inputs that were filled up with zeros."""

from __future__ import annotations

from slipstream.artifact.padding import Padding
from slipstream.artifact.verify import verification_inputs, worst_difference
from slipstream.errors import ShapeError, VerificationError
from slipstream.frontends.model import Model
from slipstream.frontends.shape_variants import variant_labels


def check_padding(model: Model) -> None:
    """Raises if a larger variant of the reference computes something else from inputs of a smaller one, filled up."""
    variants = model.variants
    if not variants:
        raise ShapeError("--pad needs several shapes to fill inputs up to: give --shape a list or a range")
    padding = Padding([v.inputs for v in variants], [v.outputs for v in variants])
    labels = variant_labels(model)
    compared = False
    for number, small in enumerate(variants):
        shapes = [spec.shape for spec in small.inputs]
        place = padding.bucket(shapes, other_than=number)
        if place is None:
            continue
        feed = verification_inputs(small, None)[0]
        filled = padding.fill([feed[spec.name] for spec in small.inputs], place)
        names = [spec.name for spec in small.inputs]
        (expected,) = small.reference.outputs([feed])
        (computed,) = variants[place].reference.outputs([dict(zip(names, filled, strict=True))])
        name, error, allowed = worst_difference(small, expected, padding.cut(computed, shapes))
        compared = True
        if error > allowed:
            raise VerificationError(
                f"inputs cannot be filled up: from {labels[number]} filled up to {labels[place]} "
                f"{model.reference.name} computes another {name!r} (relative error {error:.1e}); leave --pad out, or "
                "vary only dimensions whose items do not depend on each other, such as the batch"
            )
    if not compared:
        raise ShapeError("--pad needs a shape that another one fits into: none of those given does")
