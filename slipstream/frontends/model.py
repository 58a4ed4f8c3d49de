"""`Model`: an imported model as a Relax module with named inputs and a reference to verify against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream.frontends.inputs import Array, TensorSpec


class Reference(Protocol):
    """Computes the outputs a compiled model is verified against."""

    name: str

    def outputs(self, feeds: Sequence[dict[str, Array]]) -> list[list[Array]]:
        """For each set of inputs, the outputs in the model's order."""


@dataclass(frozen=True)
class Model:
    """An imported model: a Relax module whose `main` takes `inputs` and holds its weights as constants."""

    name: str
    source: str
    module: Any = field(repr=False)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    fingerprint: str
    reference: Reference = field(repr=False)
    options: dict[str, Any] = field(default_factory=dict)
