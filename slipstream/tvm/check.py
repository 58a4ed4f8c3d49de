"""The tuned module against the untuned one: both built as TVM builds them, run on the same inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from slipstream.artifact.verify import verify
from slipstream.errors import VerificationError, first_line
from slipstream.frontends.inputs import Array, TensorSpec, random_inputs
from slipstream.frontends.model import Model
from slipstream.graph.cpu.pipeline import NAME as TIR_PIPELINE
from slipstream.machine.target import Target
from slipstream.machine.threads import use_threads
from slipstream.program.space import Program
from slipstream.session.call_time import seconds_of_call
from slipstream.tvm.programs import with_programs


class Built:
    """A module in TVM's virtual machine; called with inputs by name, it returns all its outputs in order."""

    name = "the untuned module"

    def __init__(self, mod: tvm.IRModule, target: Target) -> None:
        self._device = tvm.cpu() if target.gpu is None else tvm.cuda()
        with target.tvm:
            executable = tvm.compile(mod, target=target.tvm, tir_pipeline=TIR_PIPELINE)
        use_threads(target.threads)
        self._main = relax.VirtualMachine(executable, self._device)["main"]

    def __call__(self, feed: Mapping[str, Array]) -> list[Array]:
        return [tensor.numpy() for tensor in flat(self._main(*self._tensors(feed)))]

    def outputs(self, feeds: Sequence[dict[str, Array]]) -> list[list[Array]]:
        return [self(feed) for feed in feeds]

    def seconds(self, feed: Mapping[str, Array]) -> float:
        """The median of one call."""
        tensors = self._tensors(feed)

        def call() -> None:
            self._main(*tensors)
            self._device.sync()

        return seconds_of_call(call)

    def _tensors(self, feed: Mapping[str, Array]) -> list[Any]:
        return [tvm.runtime.tensor(value, self._device) for value in feed.values()]


def flat(result: Any) -> list[Any]:
    """The tensors of a result, which may be tuples of tuples."""
    return [result] if hasattr(result, "numpy") else [tensor for part in result for tensor in flat(part)]


def check_programs(
    mod: tvm.IRModule,
    inputs: tuple[TensorSpec, ...],
    target: Target,
    operators: Iterable[str],
    programs: dict[str, Program],
) -> tuple[float, str]:
    """Seconds of one run with `programs`, the default ones of other `operators`, and why they cannot be used.

    If results differ from the untuned module's by more than rounding, programs in another form than the operator's
    own, such as Winograd's, are removed from `programs`; if they still do, none can be used.
    """
    feed = random_inputs(inputs, np.random.default_rng(0))
    untuned = Built(mod, target)
    outputs = tuple(TensorSpec(f"output{i}", a.shape, str(a.dtype)) for i, a in enumerate(untuned(feed)))
    model = Model("module", "memory", mod, inputs, outputs, "", untuned)
    own_forms = {key: program for key, program in programs.items() if not program.sketch.form}
    note = ""
    for attempt in (dict(programs), own_forms):
        try:
            tuned = Built(with_programs(mod, {**dict.fromkeys(operators), **attempt}, target), target)
            verify(model, tuned, [feed])
        except VerificationError as error:
            note = f"the tuned module was wrong: {first_line(error)}"
        except Exception as error:  # whatever TVM says of a module
            note = f"the tuned module could not be built: {(str(error).splitlines() or [type(error).__name__])[-1]}"
        else:
            for key in programs.keys() - attempt.keys():
                del programs[key]
            return tuned.seconds(feed), ""
    return untuned.seconds(feed), note
