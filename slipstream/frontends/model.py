"""`Model`: an imported model as a Relax module with named inputs and a reference to verify against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from slipstream.frontends.inputs import Array, TensorSpec


class Reference(Protocol):
    """Computes the outputs a compiled model is verified against."""

    name: str

    def outputs(self, feeds: Sequence[dict[str, Array]]) -> list[list[Any]]:
        """For each set of inputs, the outputs in the model's order."""


@dataclass(frozen=True)
class CompiledPart:
    """Nodes of a model that are compiled together, as a Relax module whose `main` takes `inputs`."""

    name: str
    module: Any = field(repr=False)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: int = 0


@dataclass(frozen=True)
class OnnxPart:
    """Nodes of a model that ONNX Runtime runs, as an ONNX file; `reasons` say which of them cannot be compiled and why.

    A dimension of `inputs` and `outputs` that depends on the data is -1.
    """

    name: str
    path: Path = field(repr=False)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """An imported model: a Relax module whose `main` takes `inputs` and holds its weights as constants.

    A model that cannot be compiled as a whole has no `module` but `parts`, in the order in which they run. One for
    several shapes has neither but `variants`, a model for each, and -1 for dimensions in which they differ.
    """

    name: str
    source: str
    module: Any = field(repr=False)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    fingerprint: str
    reference: Reference = field(repr=False)
    options: dict[str, Any] = field(default_factory=dict)
    parts: tuple[CompiledPart | OnnxPart, ...] = ()
    quantised: bool = False  # something in it is rounded to 8 bits
    output_steps: tuple[float, ...] = ()  # the distance of two levels, of outputs that are rounded to 8 bits; else 0
    variants: tuple[Model, ...] = ()
    # Given, the functions of `module` are tuned as they stand and nothing is compiled: it is called with the best
    # programs by operator, from which it may remove some, and says what one run takes and why none of them is used.
    finish: Callable[[dict[str, Any]], tuple[float, str]] | None = field(default=None, repr=False)

    @property
    def shape_variants(self) -> tuple[Model, ...]:
        """The model at each of its shapes; itself if it has one."""
        return self.variants or (self,)

    @property
    def compiled_parts(self) -> tuple[CompiledPart, ...]:
        """What has to be compiled: the whole model, or some of its parts; of all variants, one after the other."""
        if self.variants:
            return tuple(part for variant in self.variants for part in variant.compiled_parts)
        if not self.parts:
            return (CompiledPart(self.name, self.module, self.inputs, self.outputs),)
        return tuple(part for part in self.parts if isinstance(part, CompiledPart))

    @property
    def onnx_parts(self) -> tuple[OnnxPart, ...]:
        """What ONNX Runtime runs."""
        if self.variants:
            return tuple(part for variant in self.variants for part in variant.onnx_parts)
        return tuple(part for part in self.parts if isinstance(part, OnnxPart))


def describe_parts(parts: Sequence[CompiledPart | OnnxPart]) -> list[tuple[str, str, int, str]]:
    """A row for each part: its name, what runs it, how many nodes it has, and why it is not compiled."""
    return [
        (part.name, "compiled", part.nodes, "")
        if isinstance(part, CompiledPart)
        else (part.name, "ONNX Runtime", part.nodes, "; ".join(part.reasons))
        for part in parts
    ]
