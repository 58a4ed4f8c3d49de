"""Running programs on a device that its own memory belongs to: load a library, run it once, check it, and time it.

Inputs of an operator stay on the device for all its programs, and are compared after each: one that wrote to an input
would change it for the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from slipstream.errors import BuildError
from slipstream.machine.mounts import is_noexec
from slipstream.measure.arena import Array, Layout, disagreement, map_arena, same_bytes
from slipstream.measure.checked_run import Answer, Checked, failure_of
from slipstream.measure.guarded import poison
from slipstream.measure.types import FailureKind

_MOST_OPERATORS = 16


@dataclass(frozen=True)
class Arguments:
    """An operator's arguments: what they should hold after a run, and where they are on the device."""

    layout: Layout
    expected: list[Array]
    tensors: list[Any]


@dataclass(frozen=True)
class Loaded:
    """A program on the device and its arguments. `packed` are positions of weights that only this program has.

    Each of `weight_copies` holds the arguments at `weights` once more; runs that are timed take them in turn.
    """

    module: Any
    tensors: list[Any]
    packed: Sequence[int] = ()
    weights: Sequence[int] = ()
    weight_copies: list[list[Any]] = field(default_factory=list)


class Launcher:
    """Runs programs on `device`. After a failed run on a GPU the whole process has to be replaced."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._arguments: dict[str, Arguments] = {}
        self._kept: dict[str, Loaded] = {}

    @property
    def has_kept(self) -> bool:
        """Whether there is a program that can be sampled again."""
        return bool(self._kept)

    def answer(self, request: dict[str, Any]) -> Answer:
        """Do the one job in `request`; a failure is part of the answer."""
        jobs: dict[str, Callable[..., Answer]] = {"launch": self.launch, "sample": self.sample, "forget": self.forget}
        (job, options), *_ = request.items()
        try:
            return jobs[job](**options)
        except Exception as error:
            return failure_of(error, FailureKind.RUN_ERROR)

    def launch(
        self,
        operator: str,
        library: str,
        arena: str,
        layout: list[dict[str, Any]],
        best: float | None,
        tolerance: float,
        racing: Answer,
        model_weights: int,
        keep: bool,
        module: str = "",
    ) -> Answer:
        """First run, comparison with the reference, samples. A program to `keep` can be sampled again by its library.

        `module` is the program's text where its weights may have to be packed.
        """
        code = self._load(library)
        began = time.perf_counter()
        arguments = self._arguments_of(operator, arena, Layout.from_json(layout))
        loaded = self._bind(code, arguments, module, model_weights)
        for index in arguments.layout.outputs:
            invalid = np.empty_like(arguments.expected[index])
            poison(invalid)
            loaded.tensors[index].copyfrom(invalid)
        allocate_seconds = time.perf_counter() - began
        answer = self._checked(loaded, lambda: _find_fault(arguments, loaded, tolerance)).race(best, racing)
        if keep and "failure" not in answer:
            self._kept[library] = loaded
        return {**answer, "allocate_seconds": allocate_seconds}

    def sample(self, library: str, number: int, repeat: int) -> Answer:
        """More samples of a program that was kept."""
        return {"samples": list(self._take(self._kept[library], number, repeat))}

    def forget(self, library: str) -> Answer:
        """Free a program that was kept."""
        self._kept.pop(library, None)
        return {}

    def _load(self, library: str) -> Any:
        try:
            return tvm.runtime.load_module(library)
        except Exception as error:
            if is_noexec(Path(library)):
                raise BuildError(
                    f"{Path(library).parent} is on a file system that is mounted noexec, from which no code can be "
                    "loaded: set TMPDIR to a folder on another one"
                ) from error
            raise

    def _bind(self, code: Any, arguments: Arguments, module: str, model_weights: int) -> Loaded:
        return Loaded(code, arguments.tensors)

    def _checked(self, loaded: Loaded, find_fault: Callable[[], str]) -> Checked:
        function = loaded.module["main"]

        def run() -> None:
            function(*loaded.tensors)
            self._device.sync()

        def first() -> float:
            began = time.perf_counter()
            run()
            return time.perf_counter() - began

        return Checked(first, find_fault, run, lambda number, repeat: self._take(loaded, number, repeat))

    def _take(self, loaded: Loaded, number: int, repeat: int) -> Sequence[float]:
        """Seconds of a run by the device's own clock, which delays on this side do not affect."""
        evaluate = loaded.module.time_evaluator("main", self._device, number=number, repeat=repeat)
        return [float(seconds) for seconds in evaluate(*loaded.tensors).results]

    def _arguments_of(self, operator: str, arena: str, layout: Layout) -> Arguments:
        if operator not in self._arguments:
            if len(self._arguments) == _MOST_OPERATORS:
                del self._arguments[next(iter(self._arguments))]
            with open(arena, "rb") as file:
                expected = map_arena(file.fileno(), layout)
            tensors = [tvm.runtime.tensor(array, self._device) for array in expected]
            self._arguments[operator] = Arguments(layout, expected, tensors)
        return self._arguments[operator]


def _find_fault(arguments: Arguments, loaded: Loaded, tolerance: float) -> str:
    """What is wrong with the program's first run, or nothing."""
    for index, (expected, tensor) in enumerate(zip(arguments.expected, loaded.tensors, strict=True)):
        if index in loaded.packed:
            continue
        actual = tensor.numpy()
        if index in arguments.layout.outputs:
            if wrong := disagreement(actual, expected, tolerance):
                return wrong
        elif not same_bytes(actual, expected):
            tensor.copyfrom(expected)
            return f"changed argument {index}, which is an input"
    return ""
