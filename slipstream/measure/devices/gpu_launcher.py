"""What the one process that has a GPU does: load a program, run it once, check it, and time it.

Inputs of an operator stay on the device for all its programs, and are compared after each: one that wrote where it must
not would spoil them for the next.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from slipstream.measure.arena import Array, Layout, disagreement, map_arena
from slipstream.measure.config import Racing
from slipstream.measure.guarded import poison
from slipstream.measure.timing.sampling import race
from slipstream.measure.types import FailureKind

_MOST_OPERATORS = 16

Answer = dict[str, Any]


@dataclass(frozen=True)
class _Arguments:
    """An operator's arguments: what they should hold afterwards, and where they are on the device."""

    layout: Layout
    expected: list[Array]
    tensors: list[Any]

    @property
    def outputs(self) -> list[int]:
        return [index for index, slot in enumerate(self.layout.slots) if slot.written]


class Launcher:
    """Owns the CUDA context. An error in a kernel makes it useless: its owner then replaces the whole process."""

    def __init__(self) -> None:
        self._device = tvm.cuda(0)
        self._arguments: dict[str, _Arguments] = {}
        self._loaded: dict[str, tuple[Any, list[Any]]] = {}

    def launch(
        self,
        operator: str,
        library: str,
        arena: str,
        layout: list[dict[str, Any]],
        best: float | None,
        tolerance: float,
        racing: Answer,
        keep: bool,
    ) -> Answer:
        """First run, comparison with the reference, samples. A program to `keep` can be sampled again by its name."""
        began = time.perf_counter()
        arguments = self._arguments_of(operator, arena, Layout.from_json(layout))
        module = tvm.runtime.load_module(library)
        function, tensors = module["main"], arguments.tensors
        for index in arguments.outputs:
            spoiled = np.empty_like(arguments.expected[index])
            poison(spoiled)
            tensors[index].copyfrom(spoiled)
        allocated = time.perf_counter()
        function(*tensors)
        self._device.sync()
        first = time.perf_counter() - allocated
        if wrong := _find_fault(arguments, tolerance):
            return {"failure": FailureKind.WRONG_RESULT.value, "message": wrong}

        def run() -> None:
            function(*tensors)
            self._device.sync()

        samples = race(
            run,
            lambda number, repeat: self._take(module, tensors, number, repeat),
            first,
            float("inf") if best is None else best,
            Racing(**{**racing, "slack": tuple(racing["slack"])}),
        )
        if keep:
            self._loaded[library] = (module, tensors)
        return {
            "samples": samples.seconds,
            "stopped_early": samples.stopped_early,
            "allocate_seconds": allocated - began,
            "run_seconds": time.perf_counter() - allocated,
        }

    def launch_again(self, library: str, number: int, repeat: int) -> Answer:
        """More samples of a program that was kept; with none to take, forget it."""
        module, tensors = self._loaded[library]
        if not repeat:
            del self._loaded[library]
            return {"samples": []}
        return {"samples": list(self._take(module, tensors, number, repeat))}

    def _take(self, module: Any, tensors: list[Any], number: int, repeat: int) -> Sequence[float]:
        """Seconds of a run by the device's own clock, which the host's delays do not reach."""
        evaluate = module.time_evaluator("main", self._device, number=number, repeat=repeat)
        return [float(seconds) for seconds in evaluate(*tensors).results]

    def _arguments_of(self, operator: str, arena: str, layout: Layout) -> _Arguments:
        if operator not in self._arguments:
            if len(self._arguments) == _MOST_OPERATORS:
                del self._arguments[next(iter(self._arguments))]
            with open(arena, "rb") as file:
                expected = map_arena(file.fileno(), layout)
            tensors = [tvm.runtime.tensor(array, self._device) for array in expected]
            self._arguments[operator] = _Arguments(layout, expected, tensors)
        return self._arguments[operator]


def _find_fault(arguments: _Arguments, tolerance: float) -> str:
    """What is wrong with the program's first run, or nothing."""
    for index, (expected, tensor) in enumerate(zip(arguments.expected, arguments.tensors, strict=True)):
        actual = tensor.numpy()
        if index in arguments.outputs:
            if wrong := disagreement(actual, expected, tolerance):
                return wrong
        elif actual.tobytes() != expected.tobytes():
            tensor.copyfrom(expected)
            return f"changed argument {index}, which is an input"
    return ""
