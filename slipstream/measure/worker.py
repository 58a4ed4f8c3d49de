"""What a forked worker does: build one program, then run it as often as it is asked to, until its owner hangs up.

Requests arrive as JSON with one key that names the job. Whatever goes wrong in an orderly way is answered as
{"failure": kind, "message": ...}; for everything else the owner watches the process.
"""

from __future__ import annotations

import contextlib
import math
import resource
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.tirx.build import codegen_build

from slipstream.graph.build import prepare_for_cuda
from slipstream.graph.cpu.default_schedule import schedule_default
from slipstream.machine.target import Target
from slipstream.machine.threads import use_threads
from slipstream.measure.arena import Layout, aligned, disagreement, map_arena
from slipstream.measure.config import Racing
from slipstream.measure.expected import build_reference, fill, layout_of
from slipstream.measure.guarded import Guarded, guarded
from slipstream.measure.lowering import (
    Lowered,
    arguments_of,
    as_tensor,
    generate,
    generate_library,
    lower,
    read_module,
)
from slipstream.measure.timing.cold_weights import with_copies
from slipstream.measure.timing.noise import seconds_waited
from slipstream.measure.timing.sampling import race
from slipstream.measure.types import FailureKind
from slipstream.processes.channel import Channel, ChannelClosedError

_PROBE_SIZE = 256

Answer = dict[str, Any]


def warm_up(target: Target) -> None:
    """Make LLVM, NVRTC and TVM's passes initialise themselves before the first fork. Nothing is run."""
    if target.gpu is not None:
        prepare_for_cuda()
        kernel = tvm.IRModule({"main": schedule_default(_matmul(64), target)})
        with target.tvm:
            codegen_build(lower(kernel, target).device, target.tvm)
        target = target.host
    mod = read_module(tvm.ir.save_json(tvm.IRModule({"main": _matmul(64)})))
    scheduled = tvm.IRModule({"main": schedule_default(mod["main"], target)})
    arguments_of(scheduled["main"])
    generate(lower(scheduled, target), target)["main"]


def work(sock: socket.socket, files: list[int], target: Target) -> None:
    """Answer requests until the owner closes the channel."""
    channel = Channel(sock)
    worker = Worker(target, files)
    with contextlib.suppress(ChannelClosedError):
        while True:
            channel.send(worker.answer(channel.receive()))


class Worker:
    """One program on its way from text to samples."""

    def __init__(self, target: Target, files: list[int]) -> None:
        self._target = target
        self._files = files
        self._module: Any = None
        self._lowered: Lowered | None = None
        self._function: Any = None
        self._arguments: list[Any] = []
        self._turns: Iterator[list[Any]] | None = None

    def answer(self, request: dict[str, Any]) -> Answer:
        jobs: dict[str, Callable[..., Answer]] = {
            "lower": self.lower,
            "generate": self.generate,
            "generate_library": self.generate_library,
            "reference": self.reference,
            "run": self.run,
            "sample": self.sample,
            "probe": self.probe,
        }
        (job, options), *_ = request.items()
        building = job in ("lower", "generate", "generate_library")
        try:
            return jobs[job](**options)
        except MemoryError:
            return _failure(FailureKind.OUT_OF_MEMORY, "not enough memory")
        except Exception as error:  # TVM raises whatever it likes; any of it is this program's failure
            text = str(error).strip() or type(error).__name__
            if "bad_alloc" in text:
                return _failure(FailureKind.OUT_OF_MEMORY, "not enough memory")
            kind = FailureKind.BUILD_ERROR if building else FailureKind.RUN_ERROR
            return _failure(kind, text.splitlines()[-1])

    def lower(self, module: str) -> Answer:
        began = _Clock.now()
        self._lowered = lower(read_module(module), self._target)
        return {"fingerprint": self._lowered.fingerprint, **_Clock.since(began)}

    def generate(self) -> Answer:
        assert self._lowered is not None
        began = _Clock.now()
        self._module = generate(self._lowered, self._target)
        generated = time.process_time()
        self._function = self._module["main"]
        return {"load_seconds": time.process_time() - generated, **_Clock.since(began)}

    def generate_library(self, path: str, cpu_seconds: float) -> Answer:
        """As `generate`, for a GPU: into a file that the process which has the GPU loads."""
        assert self._lowered is not None
        began = _Clock.now()
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + cpu_seconds), hard))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
        generate_library(self._lowered, self._target, path)
        return {"load_seconds": 0.0, **_Clock.since(began)}

    def reference(self, module: str, seed: int, plain: bool) -> Answer:
        """Fill the operator's arena: random inputs, and what the default (or unscheduled) program makes of them."""
        func = read_module(module)["main"]
        layout = layout_of(func)
        function = build_reference(func, self._target.host, plain=plain)
        # The limit on what a program may print would also stop the arena from growing.
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
        use_threads(self._target.threads)
        fill(map_arena(self._files[0], layout, shared=True), layout, function, seed)
        return {"layout": layout.to_json()}

    def run(self, layout: list[dict[str, Any]], best: float | None, tolerance: float, racing: Answer) -> Answer:
        """First run, comparison with the reference, samples."""
        began = time.perf_counter()
        places = Layout.from_json(layout)
        outputs = self._allocate(places)
        use_threads(self._target.threads)
        allocated = time.perf_counter()
        self._function(*self._arguments)
        first = time.perf_counter() - allocated
        if wrong := self._find_fault(places, outputs, tolerance):
            return _failure(FailureKind.WRONG_RESULT, wrong)
        waited = seconds_waited()
        samples = race(
            self._run_cold,
            self._take,
            first,
            float("inf") if best is None else best,
            Racing(**{**racing, "slack": tuple(racing["slack"])}),
        )
        return {
            "samples": samples.seconds,
            "stopped_early": samples.stopped_early,
            "allocate_seconds": allocated - began,
            "run_seconds": time.perf_counter() - allocated,
            "waited_seconds": seconds_waited() - waited,
        }

    def sample(self, number: int, repeat: int) -> Answer:
        """More samples of a program that has been run."""
        return {"samples": list(self._take(number, repeat))}

    def probe(self) -> Answer:
        """Time a small parallel matmul that is always the same."""
        if self._module is None:
            use_threads(self._target.threads)
            mod = tvm.IRModule({"main": schedule_default(_matmul(_PROBE_SIZE), self._target)})
            self._module = generate(lower(mod, self._target, prepack=False), self._target)
            matrices = [aligned((_PROBE_SIZE, _PROBE_SIZE), np.dtype(np.float32)) for _ in range(3)]
            self._arguments = [as_tensor(matrix) for matrix in matrices]
        return {"samples": list(self._take(2, 5))}

    def _allocate(self, layout: Layout) -> dict[int, Guarded]:
        """Make the arguments, packed as the program wants them; returns those it must fill."""
        assert self._lowered is not None
        arrays = map_arena(self._files[0], layout)
        outputs = {i: guarded(slot) for i, slot in enumerate(layout.slots) if slot.written}
        for index, output in outputs.items():
            arrays[index] = output.array
        for packing in self._lowered.packings:
            arrays[packing.index] = packing(arrays[packing.index])
        weights = [i for i, slot in enumerate(layout.slots) if slot.weight]
        sets = [[as_tensor(array) for array in copy] for copy in with_copies(arrays, weights)]
        self._arguments = sets[0]
        self._turns = cycle(sets) if len(sets) > 1 else None
        return outputs

    def _find_fault(self, layout: Layout, outputs: dict[int, Guarded], tolerance: float) -> str:
        """What is wrong with the program's first run, or nothing."""
        assert self._lowered is not None
        packed = {packing.index for packing in self._lowered.packings}
        for index, expected in enumerate(map_arena(self._files[0], layout)):
            if index in outputs:
                if not outputs[index].intact:
                    return f"wrote outside of argument {index}"
                if wrong := disagreement(self._arguments[index].numpy(), expected, tolerance):
                    return wrong
            elif index not in packed and self._arguments[index].numpy().tobytes() != expected.tobytes():
                return f"changed argument {index}, which is an input"
        return ""

    def _run_cold(self) -> None:
        self._function(*(next(self._turns) if self._turns else self._arguments))

    def _take(self, number: int, repeat: int) -> Sequence[float]:
        if self._turns:
            self._run_cold()
            return [self._seconds_of(number) for _ in range(repeat)]
        evaluate = self._module.time_evaluator("main", tvm.cpu(0), number=number, repeat=repeat)
        return [float(seconds) for seconds in evaluate(*self._arguments).results]

    def _seconds_of(self, number: int) -> float:
        """TVM's timer runs on the same arguments every time; calling from here costs a microsecond."""
        began = time.perf_counter()
        for _ in range(number):
            self._run_cold()
        return (time.perf_counter() - began) / number


@dataclass(frozen=True)
class _Clock:
    """Seconds of this process, and those on the wall: they differ while a builder is paused or waits for a core."""

    process: float
    wall: float

    @staticmethod
    def now() -> _Clock:
        return _Clock(time.process_time(), time.perf_counter())

    @staticmethod
    def since(began: _Clock) -> dict[str, float]:
        now = _Clock.now()
        return {"seconds": now.process - began.process, "elapsed_seconds": now.wall - began.wall}


def _matmul(size: int) -> Any:
    a, b = (te.placeholder((size, size), name=name) for name in "ab")
    k = te.reduce_axis((0, size), "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")


def _failure(kind: FailureKind, message: str) -> Answer:
    return {"failure": kind.value, "message": message}
