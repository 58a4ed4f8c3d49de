"""What our RPC server offers beyond TVM's: timing with several copies of the weights, waiting for a core, and what
hardware it has.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from typing import Any

from slipstream.machine.hardware import cpu_class
from slipstream.measure.timing.noise import waits

TIME_IN_TURN = "slipstream.time_in_turn"
WAITS = "slipstream.waits"
HARDWARE_CLASS = "slipstream.hardware_class"


@dataclass(frozen=True)
class Plan:
    """Take `repeat` samples of `number` runs each, of a program with so many `arguments`, with copies of `weights`."""

    number: int
    repeat: int
    arguments: int
    weights: tuple[int, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def time_in_turn(plan: str, module: Any, *tensors: Any) -> str:
    """Seconds of a run, as JSON; every run takes the next copy of the weights. `tensors`: the arguments, the copies."""
    asked = Plan(**json.loads(plan))
    arguments, copies = list(tensors[: asked.arguments]), tensors[asked.arguments :]
    sets = [arguments]
    for start in range(0, len(copies), len(asked.weights)):
        sets.append(list(arguments))
        for position, tensor in zip(asked.weights, copies[start:], strict=False):
            sets[-1][position] = tensor
    function, turns = module["main"], cycle(sets)
    function(*next(turns))
    seconds = []
    for _ in range(asked.repeat):
        began = time.perf_counter()
        for _ in range(asked.number):
            function(*next(turns))
        seconds.append((time.perf_counter() - began) / asked.number)
    return json.dumps(seconds)


def register(threads: int | None) -> None:
    """Let clients of this process call these functions; programs run on so many `threads`, or on every core."""
    import tvm_ffi

    tvm_ffi.register_global_func(TIME_IN_TURN, time_in_turn, override=True)
    tvm_ffi.register_global_func(WAITS, lambda: json.dumps(waits()), override=True)
    tvm_ffi.register_global_func(HARDWARE_CLASS, partial(cpu_class, threads), override=True)
