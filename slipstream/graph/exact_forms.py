"""Giving operators their exact form instead of a faster one that rounds more, where a model needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tvm import s_tir, tirx

from slipstream.graph.cpu.default_schedule import schedule_default
from slipstream.graph.describe.key import operator_key
from slipstream.graph.describe.names import describe
from slipstream.graph.forms import schedule_untuned
from slipstream.graph.winograd.form import PRODUCT, find_convolution
from slipstream.machine.target import Target
from slipstream.tvm_bridge.nodes import nodes

Program = Callable[[tirx.PrimFunc], tirx.PrimFunc]


class ExactForms:
    """A program for each operator: that of `program` (the default one if it is None) or, for operators that `steps`
    has come to, the default one in the operator's own form. `functions` says whether exp and similar ones have to be
    exact, which is decided when a model is prepared. Both begin with what is given.
    """

    def __init__(
        self, program: Program | None, target: Target, operators: Sequence[str] = (), functions: bool = False
    ) -> None:
        self._program = program or (lambda func: schedule_untuned(func, target))
        self._target = target
        self._rounding: dict[str, tuple[int, str]] = {}  # operators by Winograd's method: their channels and names
        self._exact = list(operators)
        self.functions = functions

    def __call__(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        if self._exact and (key := operator_key(func)) in self._exact:
            self._rounding.setdefault(key, (0, describe(func)[0]))
            return schedule_default(func, self._target)
        scheduled = self._program(func)
        convolution = find_convolution(func) if _is_winograd(scheduled) else None
        if convolution is not None:
            self._rounding[operator_key(func)] = (convolution.channels, describe(func)[0])
        return scheduled

    def steps(self, functions: bool) -> Iterator[None]:
        """Make ever more operators exact, those that sum over the most channels first, then exp and similar functions
        as well, if the model has any; to be called when the program has been applied.
        """
        operators = sorted(self._rounding, key=lambda key: self._rounding[key], reverse=True)
        count = 1
        while operators and len(self._exact) < len(operators):
            self._exact = operators[:count]
            count *= 2
            yield
        if functions:
            self.functions = True
            yield

    @property
    def operators(self) -> tuple[str, ...]:
        """The keys of those that were made exact."""
        return tuple(self._exact)

    @property
    def note(self) -> str:
        """What was made exact, in one line; empty if nothing was."""
        names = [self._rounding[key][1] for key in self._exact if key in self._rounding]
        changed = [f"by Winograd's method no more: {', '.join(names)}"] if names else []
        changed += ["exp and similar functions not by polynomials"] if self.functions else []
        return f"computed exactly so that the model passes its check: {'; '.join(changed)}" if changed else ""


def _is_winograd(func: tirx.PrimFunc) -> bool:
    # A schedule may have split it.
    return any(block.name_hint.startswith(PRODUCT) for block in nodes(func.body, s_tir.SBlock))
