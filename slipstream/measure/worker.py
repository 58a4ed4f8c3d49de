"""What a forked worker does: build one program and, on a CPU, run it, until its owner closes the channel.

Requests arrive as JSON with one key that names the job. An orderly failure is answered as
{"failure": kind, "message": ...}; for everything else the owner watches the process.
"""

from __future__ import annotations

import contextlib
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx
from tvm.tirx.build import codegen_build

from slipstream.graph.build import prepare_for_cuda
from slipstream.graph.cpu.default_schedule import schedule_default
from slipstream.graph.gpu.triton.kernel import EXAMPLE, compile_kernel
from slipstream.graph.operators import count_flops
from slipstream.graph.parallelism import threads_worth
from slipstream.machine.affinity import stay_on
from slipstream.machine.target import Target
from slipstream.machine.threads import one_call, use_threads
from slipstream.measure.arena import Layout, aligned, disagreement, map_arena, same_bytes
from slipstream.measure.checked_run import Answer, Checked, failure_of
from slipstream.measure.expected import build_reference, fill, is_small, layout_of
from slipstream.measure.guarded import Guarded, guarded
from slipstream.measure.lowering import (
    Lowered,
    Packing,
    arguments_of,
    as_tensor,
    generate,
    generate_library,
    lower,
    packings_of,
    read_module,
)
from slipstream.measure.timing.cold_weights import with_copies
from slipstream.measure.timing.in_model import CallMemory, PreparedRuns, Preparing, seconds_of
from slipstream.measure.timing.noise import PROBE_SIZE, sample_probe, waits
from slipstream.measure.types import FailureKind
from slipstream.processes.channel import Channel, ChannelClosedError


def warm_up(target: Target) -> None:
    """Make LLVM, NVRTC and TVM's passes initialise themselves before the first fork. Nothing is run."""
    if target.gpu is not None:
        prepare_for_cuda()
        kernel = tvm.IRModule({"main": schedule_default(_relu(64), target)})
        with target.tvm:
            codegen_build(lower(kernel, target).device, target.tvm)
        if target.has_triton and target.uses_tensor_cores:
            compile_kernel(EXAMPLE, target.gpu.architecture)
        target = target.host
    mod = read_module(tvm.ir.save_json(tvm.IRModule({"main": _matmul(64)})))
    scheduled = tvm.IRModule({"main": schedule_default(mod["main"], target)})
    arguments_of(scheduled["main"])
    generate(lower(scheduled, target), target)["main"]


def work(target: Target, preparing: Preparing | None, channel: Channel, files: list[int]) -> None:
    """Answer requests until the owner closes the channel."""
    worker = Worker(target, preparing, files)
    with contextlib.suppress(ChannelClosedError):
        while True:
            channel.send(worker.answer(channel.receive()))


class Worker:
    """One program on its way from text to samples."""

    def __init__(self, target: Target, preparing: Preparing | None, files: list[int]) -> None:
        self._target = target
        self._preparing = preparing
        self._files = files
        self._module: Any = None
        self._lowered: Lowered | None = None
        self._function: Any = None
        self._packings: tuple[Packing, ...] = ()
        self._flops = 0
        self._threads = target.threads
        self._checked_arguments: list[Any] = []  # of the first run
        self._outputs: dict[int, Guarded] = {}
        self._memory: CallMemory | None = None
        self._argument_sets: Iterator[list[Any]] = iter(())  # of those that are timed
        self._runs: PreparedRuns | None = None

    def answer(self, request: dict[str, Any]) -> Answer:
        jobs: dict[str, Callable[..., Answer]] = {
            "lower": self.lower,
            "generate": self.generate,
            "generate_library": self.generate_library,
            "generate_probe": self.generate_probe,
            "load_library": self.load_library,
            "reference": self.reference,
            "allocate": self.allocate,
            "run": self.run,
            "sample": self.sample,
            "probe": self.probe,
        }
        (job, options), *_ = request.items()
        building = job in ("lower", "generate", "generate_library")
        try:
            return jobs[job](**options)
        except Exception as error:
            return failure_of(error, FailureKind.BUILD_ERROR if building else FailureKind.RUN_ERROR)

    def lower(self, module: str) -> Answer:
        began = _Clock.now()
        program = read_module(module)
        self._lowered = lower(program, self._target)
        self._packings = self._lowered.packings
        self._flops = count_flops(program["main"])
        return {"fingerprint": self._lowered.fingerprint, **_Clock.since(began)}

    def generate(self) -> Answer:
        assert self._lowered is not None
        began = _Clock.now()
        self._module = generate(self._lowered, self._target)
        generated = time.process_time()
        self._function = self._module["main"]
        return {"load_seconds": time.process_time() - generated, **_Clock.since(began)}

    def generate_library(self, path: str, cpu_seconds: float | None) -> Answer:
        """As `generate`, into a file that another process or machine loads, in at most `cpu_seconds` of a core."""
        assert self._lowered is not None
        began = _Clock.now()
        if cpu_seconds is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + cpu_seconds), hard))
        _allow_files()
        generate_library(self._lowered, self._target, path)
        return {"load_seconds": 0.0, **_Clock.since(began)}

    def load_library(self, path: str, module: str) -> Answer:
        """Take the code of the program `module` from a library that another process has generated."""
        program = read_module(module)["main"]
        self._packings, self._flops = tuple(packings_of(program)), count_flops(program)
        self._module = tvm.runtime.load_module(path)
        self._function = self._module["main"]
        return {}

    def generate_probe(self, path: str) -> Answer:
        """The reference kernel as a library, for a remote device."""
        _allow_files()
        generate_library(self._lower_probe(), self._target, path)
        return {}

    def reference(self, module: str, seed: int, plain: bool) -> Answer:
        """Fill the operator's arena: random inputs, and what the default program makes of them, or, if `plain` or the
        operator is small, its unscheduled function."""
        func = read_module(module)["main"]
        layout, plain = layout_of(func), plain or is_small(func)
        function = build_reference(func, self._target.host, plain=plain)
        _allow_files()  # the arena has to grow
        use_threads(self._target.threads)
        fill(map_arena(self._files[0], layout, shared=True), layout, function, seed)
        return {"layout": layout.to_json(), "plain": plain}

    def allocate(self, layout: list[dict[str, Any]], model_weights: int) -> Answer:
        """Make the arguments of the next run."""
        began = _Clock.now()
        self._outputs = self._allocate(Layout.from_json(layout), model_weights)
        return _Clock.since(began)

    def run(
        self,
        layout: list[dict[str, Any]],
        best: float | None,
        tolerance: float,
        racing: Answer,
        model_weights: int,
        is_allocated: bool = False,
        cores: Sequence[int] = (),
    ) -> Answer:
        """First run, comparison with the reference, samples; on these `cores`, if any are given."""
        began = time.perf_counter()
        if cores:
            stay_on(cores)
        places = Layout.from_json(layout)
        outputs = self._outputs if is_allocated else self._allocate(places, model_weights)
        use_threads(self._target.threads)
        # As many as the step of a model has.
        worth = threads_worth(self._flops, (slot.nbytes for slot in places.slots), self._target.vector_lanes)
        self._threads = min(self._target.threads, worth)
        assert self._memory is not None
        assert self._preparing is not None
        self._runs = PreparedRuns(self._preparing, self._memory, self._threads, self._run_next)
        allocate_seconds = time.perf_counter() - began
        run = Checked(
            first=lambda: seconds_of(lambda: self._function(*self._checked_arguments)),
            find_fault=lambda: self._find_fault(places, outputs, tolerance),
            run=self._run_next,
            sample=self._take,
            waits=waits,
        )
        return {**run.race(best, racing), "allocate_seconds": allocate_seconds}

    def sample(self, number: int, repeat: int) -> Answer:
        """More samples of a program that has been run."""
        return {"samples": list(self._take(number, repeat))}

    def probe(self, cores: Sequence[int] = ()) -> Answer:
        """Time the reference kernel."""
        if self._module is None:
            if cores:
                stay_on(cores)
            use_threads(self._target.threads)
            self._module = generate(self._lower_probe(), self._target)
            matrices = [aligned((PROBE_SIZE, PROBE_SIZE), np.dtype(np.float32)) for _ in range(3)]
            self._checked_arguments = [as_tensor(matrix) for matrix in matrices]
        return {"samples": sample_probe(self._time_probe)}

    def _time_probe(self, number: int, repeat: int) -> Sequence[float]:
        evaluate = self._module.time_evaluator("main", tvm.cpu(0), number=number, repeat=repeat)
        with one_call(self._target.threads):
            return [float(seconds) for seconds in evaluate(*self._checked_arguments).results]

    def _lower_probe(self) -> Lowered:
        mod = tvm.IRModule({"main": schedule_default(_matmul(PROBE_SIZE), self._target)})
        return lower(mod, self._target, prepack=False)

    def _allocate(self, layout: Layout, model_weights: int) -> dict[int, Guarded]:
        """Make the arguments of the first run and of those that are timed, packed as the program reads them; returns
        what the first run must fill."""
        arrays = map_arena(self._files[0], layout)
        outputs = {i: guarded(slot) for i, slot in enumerate(layout.slots) if slot.written}
        for index, output in outputs.items():
            arrays[index] = output.array
        for packing in self._packings:
            arrays[packing.index] = packing(arrays[packing.index])
        self._checked_arguments = [as_tensor(array) for array in arrays]
        inputs = [i for i in range(len(arrays)) if i not in outputs and i not in layout.weights]
        memory = self._memory = CallMemory([arrays[i] for i in inputs], [arrays[i] for i in outputs])
        for index, array in zip((*inputs, *outputs), (*memory.inputs, *memory.outputs), strict=True):
            arrays[index] = array
        copies = with_copies(arrays, layout.weights, model_weights)
        sets = [[as_tensor(array) for array in copy] for copy in copies]
        self._argument_sets = cycle(sets)
        return outputs

    def _find_fault(self, layout: Layout, outputs: dict[int, Guarded], tolerance: float) -> str:
        """What is wrong with the program's first run, or nothing."""
        packed = {packing.index for packing in self._packings}
        for index, expected in enumerate(map_arena(self._files[0], layout)):
            if index in outputs:
                if not outputs[index].intact:
                    return f"wrote outside of argument {index}"
                if wrong := disagreement(self._checked_arguments[index].numpy(), expected, tolerance):
                    return wrong
            elif index not in packed and not same_bytes(self._checked_arguments[index].numpy(), expected):
                return f"changed argument {index}, which is an input"
        return ""

    def _run_next(self) -> None:
        self._function(*next(self._argument_sets))

    def _take(self, number: int, repeat: int) -> Sequence[float]:
        assert self._runs is not None
        with one_call(self._threads):
            return [self._runs.sample(number) for _ in range(repeat)]


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


def _allow_files() -> None:
    """Lift the limit on what a worker may print, which holds for every file."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)


def _matmul(size: int) -> Any:
    a, b = (te.placeholder((size, size), name=name) for name in "ab")
    k = te.reduce_axis((0, size), "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")


def _relu(size: int) -> Any:
    a = te.placeholder((size, size), name="a")
    b = te.compute((size, size), lambda i, j: tirx.max(a[i, j], tirx.const(0, "float32")), name="b")
    return te.create_prim_func([a, b]).with_attr("global_symbol", "main")
