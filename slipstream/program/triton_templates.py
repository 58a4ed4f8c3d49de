"""Triton templates as sketches: their decisions are sizes, and what a GPU can run is computed from them alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx

from slipstream.graph.gpu.triton.kernel import with_kernel
from slipstream.graph.gpu.triton.templates import Template, Values, find_template
from slipstream.machine.target import Target
from slipstream.program.decisions import Decisions, IllegalDecisionError
from slipstream.program.sketch import SCALE, Sketch

TRITON = "triton:"
"""How the forms of these sketches begin."""
_MOST_DRAWS = 2000


@dataclass(frozen=True)
class TemplateSketch:
    """A template of an operator: its sketch, its checks, random decisions, and programs."""

    func: tirx.PrimFunc
    template: Template

    says_all = True

    @classmethod
    def of(cls, func: tirx.PrimFunc, target: Target) -> TemplateSketch | None:
        """None where Triton is not installed or has no kernel for the operator."""
        template = find_template(func, target)
        return None if template is None else cls(func, template)

    @cached_property
    def sketch(self) -> Sketch:
        candidates = self.template.candidates.items()
        instructions = [[SCALE, [], [list(values)], [name]] for name, values in candidates]
        content = {"form": TRITON + self.template.name, "instructions": instructions}
        return Sketch(json.dumps(content, separators=(",", ":")))

    @cached_property
    def start(self) -> Decisions:
        candidates = self.template.candidates.values()
        return tuple(values.index(value) for values, value in zip(candidates, self.template.start, strict=True))

    def check(self, decisions: Decisions) -> None:
        """Raise `IllegalDecisionError` for what the GPU cannot run."""
        if refusal := self.template.refusal(self._values(decisions)):
            raise IllegalDecisionError(refusal)

    def allowed(self, drawn: Sequence[Decisions]) -> NDArray[np.bool_]:
        """Which of many pass `check`."""
        return np.array([not self.template.refusal(self._values(decisions)) for decisions in drawn], dtype=bool)

    def occupancy(self, decisions: Sequence[Decisions]) -> NDArray[np.float64]:
        """Nothing that the decisions do not say one by one."""
        return np.zeros((len(decisions), 0))

    def draw(self, rng: np.random.Generator) -> Decisions:
        """Decisions at random that pass `check`."""
        sizes = [len(values) for values in self.template.candidates.values()]
        for _ in range(_MOST_DRAWS):
            decisions = tuple(int(rng.integers(size)) for size in sizes)
            if not self.template.refusal(self._values(decisions)):
                return decisions
        return self.start

    def module(self, decisions: Decisions) -> tvm.IRModule:
        """The operator with the kernel of these decisions."""
        kernel = self.template.kernel(self._values(decisions))
        return tvm.IRModule({"main": with_kernel(self.func, kernel).with_attr("global_symbol", "main")})

    def _values(self, decisions: Decisions) -> Values:
        candidates = self.template.candidates.values()
        chosen = zip(candidates, decisions, strict=True)
        return tuple(values[index] for values, index in chosen if isinstance(index, int))
