"""Calling a model for several shapes: the variant for the inputs' shapes runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slipstream.artifact.padding import Padding, Shape
from slipstream.artifact.runtime import Executor, Outputs, check_tensor, host_array, is_on_host
from slipstream.errors import InputError
from slipstream.frontends.inputs import Array, TensorSpec
from slipstream.frontends.shape_variants import shape_labels


class ShapeDispatcher(Executor):
    """Executors of the same model at different shapes. With `pad`, inputs of other shapes are filled up with zeros to
    the smallest variant that they fit into, and results are cut back.
    """

    def __init__(
        self,
        variants: Sequence[Executor],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        pad: bool = False,
    ) -> None:
        super().__init__(inputs, outputs)
        self._variants = list(variants)
        self._numbers = {tuple(s.shape for s in variant.inputs): n for n, variant in enumerate(variants)}
        shapes = [variant.inputs for variant in variants], [variant.outputs for variant in variants]
        self._padding = Padding(*shapes) if pad else None
        self._labels = shape_labels(shapes[0])

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        """As `Executor.__call__`, on inputs of any shape that is there."""
        values = self._bind(args, kwargs)
        shapes = self._shapes(values)
        number = self._numbers.get(shapes)
        if number is not None:
            return self._variants[number](*values)
        number = self._larger(shapes, values)
        assert self._padding is not None
        filled = self._padding.fill([_host_array(*pair) for pair in zip(self.inputs, values, strict=True)], number)
        results = self._variants[number](*filled)
        return Outputs(self._padding.cut(results, shapes), results.names)

    def on_device(self, *args: Any, **kwargs: Any) -> Callable[[], Outputs]:
        values = self._bind(args, kwargs)
        number = self._numbers.get(self._shapes(values))
        if number is None:
            raise self._not_there(values, "inputs that stay on the device are not filled up, give one of these")
        return self._variants[number].on_device(*values)

    def run_arrays(self, arrays: list[Array]) -> list[Array]:
        return list(self(*arrays))

    def close(self) -> None:
        for variant in self._variants:
            variant.close()

    def _shapes(self, values: Sequence[Any]) -> tuple[Shape, ...]:
        for spec, value in zip(self.inputs, values, strict=True):
            check_tensor(spec, value)
        return tuple(tuple(map(int, value.shape)) for value in values)

    def _larger(self, shapes: Sequence[Shape], values: Sequence[Any]) -> int:
        """The variant that inputs of these shapes are filled up to."""
        if self._padding is None:
            raise self._not_there(values, "compile it with this --shape too, or with --pad to fill up to a larger one")
        number = self._padding.bucket(shapes)
        if number is None:
            raise self._not_there(values, "compile it with a --shape into which these fit")
        return number

    def _not_there(self, values: Sequence[Any], remedy: str) -> InputError:
        pairs = list(zip(self.inputs, values, strict=True))
        varied = [(spec, value) for spec, value in pairs if -1 in spec.shape]
        other = [(spec, value) for spec, value in pairs if -1 not in spec.shape and tuple(value.shape) != spec.shape]
        got = ", ".join(f"{spec.name} {'x'.join(map(str, value.shape)) or 'scalar'}" for spec, value in varied + other)
        return InputError(f"the model was not compiled for {got}; it has {'; '.join(self._labels)}: {remedy}")


def _host_array(spec: TensorSpec, value: Any) -> Array:
    if not is_on_host(spec, value):
        raise InputError(f"input {spec.name!r} is on a GPU, where inputs are not filled up: fill it up before the call")
    return host_array(spec, value)
