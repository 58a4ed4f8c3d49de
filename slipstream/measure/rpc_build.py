"""The worker that builds programs into shared libraries a device can load."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from slipstream.artifact.linker import link
from slipstream.measure.lowering import arguments_of, generate, lower, read_module
from slipstream.measure.rpc_messages import BuildFailed, BuildJob, Built
from slipstream.target import Target


def build_programs(connection: Connection, target: Target) -> None:
    """Answer each `BuildJob` with `Built` or `BuildFailed`, until the other side hangs up."""
    while True:
        job: BuildJob = connection.recv()
        started = time.monotonic()
        try:
            answer = _build(job, target)
        except Exception as error:
            connection.send(BuildFailed(_last_line(error), time.monotonic() - started))
        else:
            connection.send(answer)


def _build(job: BuildJob, target: Target) -> Built:
    started = time.monotonic()
    mod = read_module(job.module)
    arguments = [(argument.dtype, argument.shape) for argument in arguments_of(mod["main"])]
    lowered = lower(mod, target)
    # Weights arrive packed, as they do in the finished model.
    for packing in lowered.packings:
        arguments[packing.index] = (arguments[packing.index][0], packing.shape)
    library = generate(lowered, target)
    compiled = time.monotonic()
    library.export_library(job.output, fcompile=link)
    linked = time.monotonic()
    return Built(tuple(arguments), lowered.fingerprint, linked - started, linked - compiled)


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
