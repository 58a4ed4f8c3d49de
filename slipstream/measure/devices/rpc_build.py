"""The worker that builds programs into shared libraries a device can load, and knows what they should compute."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path
from zlib import crc32

from slipstream.machine.linker import link
from slipstream.machine.target import Target
from slipstream.machine.threads import use_threads
from slipstream.measure.arena import aligned, numpy_type
from slipstream.measure.devices.rpc_messages import Arguments, BuilderOptions, BuildFailed, BuildJob, Built, packed_path
from slipstream.measure.devices.rpc_values import read_values, write_values
from slipstream.measure.expected import build_reference, fill, layout_of
from slipstream.measure.lowering import Lowered, arguments_of, generate, lower, read_module
from slipstream.measure.types import FailureKind
from slipstream.processes.limits import limit_memory


def build_programs(connection: Connection, options: BuilderOptions) -> None:
    """Answer each `BuildJob` with `Built` or `BuildFailed`, until the other side hangs up."""
    limit_memory(options.memory_bytes)
    while True:
        job: BuildJob = connection.recv()
        started = time.monotonic()
        try:
            answer: Built | BuildFailed = _build(job, options.target)
        except MemoryError:
            answer = BuildFailed(FailureKind.OUT_OF_MEMORY, "not enough memory", time.monotonic() - started)
        except _ReferenceError as error:
            answer = BuildFailed(FailureKind.RUN_ERROR, str(error), time.monotonic() - started)
        except Exception as error:
            out_of_memory = "bad_alloc" in str(error)
            kind = FailureKind.OUT_OF_MEMORY if out_of_memory else FailureKind.BUILD_ERROR
            answer = BuildFailed(kind, _last_line(error), time.monotonic() - started)
        connection.send(answer)


class _ReferenceError(Exception):
    pass


def _build(job: BuildJob, target: Target) -> Built:
    started = time.monotonic()
    mod = read_module(job.module)
    expected = arguments_of(mod["main"])
    arguments = [(argument.dtype, argument.shape) for argument in expected]
    lowered = lower(mod, target)
    if job.reference:
        _provide_values(job, target)
        _pack_weights(job, lowered, tuple(arguments))
    # Weights arrive packed, as they do in the finished model.
    for packing in lowered.packings:
        arguments[packing.index] = (arguments[packing.index][0], packing.shape)
    library = generate(lowered, target)
    compiled = time.monotonic()
    library.export_library(job.output, fcompile=link)
    linked = time.monotonic()
    return Built(
        tuple(arguments),
        tuple(index for index, argument in enumerate(expected) if argument.written),
        tuple(packing.index for packing in lowered.packings),
        lowered.fingerprint,
        linked - started,
        linked - compiled,
    )


def _provide_values(job: BuildJob, target: Target) -> None:
    """Make the operator's inputs and expected results unless some builder has done so."""
    if Path(job.values).exists():
        return
    try:
        func = read_module(job.reference)["main"]
        layout = layout_of(func)
        arrays = [aligned(slot.shape, numpy_type(slot.dtype)) for slot in layout.slots]
        use_threads(target.threads)
        fill(arrays, layout, build_reference(func, target, plain=False), crc32(job.reference.encode()))
    except Exception as error:
        text = f"the operator itself could not be run to compare with: {_last_line(error)}"
        raise _ReferenceError(text) from error
    write_values(job.values, dict(enumerate(arrays)))


def _pack_weights(job: BuildJob, lowered: Lowered, arguments: Arguments) -> None:
    """Write the weights in the order in which this program reads them."""
    if lowered.packings:
        values = read_values(job.values, arguments)
        write_values(packed_path(job.output), {p.index: p(values[p.index]) for p in lowered.packings})


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
