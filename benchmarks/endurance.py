"""Memory, answers and processes over thousands of real trials in one run (8 minutes).

Random programs of a small matmul, every twentieth of which crashes. Notes the memory of this process and of the
measurer's server every hundred trials; ends with an error if either grew by more than 10 % and 30 MB over the second
half, if a trial got no answer, or if a process is left over.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import psutil

from slipstream.tvm_bridge.imports import import_tvm_without_torch

import_tvm_without_torch()

import tvm  # noqa: E402
from tvm import s_tir, te, tirx  # noqa: E402

from benchmarks.runner import run  # noqa: E402
from slipstream.errors import SlipstreamError  # noqa: E402
from slipstream.machine.target import resolve_target  # noqa: E402
from slipstream.measure import Candidate, LocalMeasurer, reference_text  # noqa: E402

_SIZE = 64
_KEY = "matmul"
_EVERY = 100
QUICK = {"trials": 100}


def matmul() -> Any:
    a, b = (te.placeholder((_SIZE, _SIZE), name=name) for name in "ab")
    k = te.reduce_axis((0, _SIZE), "k")
    c = te.compute((_SIZE, _SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")


def random_program(rng: np.random.Generator, label: str, *, crash: bool) -> Candidate:
    sch = s_tir.Schedule(tvm.IRModule({"main": matmul()}))
    block = sch.get_sblock("c")
    tiles = [sch.split(loop, _random_factors(rng)) for loop in sch.get_loops(block)]
    inner = [loop for _, *rest in tiles for loop in rest]
    order = [tiles[0][0], tiles[1][0], tiles[2][0], *(inner[int(i)] for i in rng.permutation(len(inner)))]
    sch.reorder(*order)
    sch.parallel(order[0])
    func = sch.mod["main"]
    if crash:
        abort = tirx.Evaluate(tirx.call_extern("int32", "abort"))
        func = func.with_body(tirx.SeqStmt([abort, func.body]))
    return Candidate(_KEY, str(tvm.ir.save_json(tvm.IRModule({"main": func}))), label)


def _random_factors(rng: np.random.Generator) -> list[int | None]:
    return [None, *(int(2 ** rng.integers(0, 4)) for _ in range(2))]


def programs(trials: int, rng: np.random.Generator) -> Iterator[Candidate]:
    for number in range(trials):
        yield random_program(rng, str(number), crash=number % 20 == 19)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=2000)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    memory: list[dict[str, float]] = []
    kinds: Counter[str] = Counter()
    with LocalMeasurer(resolve_target(), {_KEY: reference_text(matmul())}) as measurer:
        processes = {"own_mb": psutil.Process(), "server_mb": psutil.Process(measurer._runner.server.pid)}
        stream = measurer.measure(programs(options.trials, np.random.default_rng(options.seed)))
        for number, measurement in enumerate(stream, start=1):
            kinds["duplicate" if measurement.duplicate else str(measurement.failure and measurement.failure.kind)] += 1
            if number % _EVERY == 0 or number == options.trials:
                resident = {name: process.memory_info().rss / 1e6 for name, process in processes.items()}
                memory.append({"trials": number, **resident})
    seconds = time.monotonic() - began
    left = [process for process in psutil.Process().children(recursive=True) if process.is_running()]
    data = {"trials": options.trials, "seconds": seconds, "kinds": dict(kinds), "memory": memory, "left": len(left)}
    _check(data)
    return data


def _check(data: Mapping[str, Any]) -> None:
    half = data["memory"][len(data["memory"]) // 2 :]
    for what in ("own_mb", "server_mb"):
        growth = half[-1][what] - half[0][what]
        if growth > 30 and growth > 0.1 * half[0][what]:
            raise SlipstreamError(f"{what} grew by {growth:.0f} MB over the second half")
    if sum(data["kinds"].values()) != data["trials"] or data["left"]:
        raise SlipstreamError("a trial got no answer, or a process is left")


def markdown(data: Mapping[str, Any]) -> str:
    lines = ["| after trials | own memory, MB | server's, MB |", "| --- | --- | --- |"]
    for row in (data["memory"][0], data["memory"][len(data["memory"]) // 2], data["memory"][-1]):
        lines.append(f"| {row['trials']} | {row['own_mb']:.0f} | {row['server_mb']:.0f} |")
    kinds = ", ".join(f"{count} {'measured' if kind == 'None' else kind}" for kind, count in data["kinds"].items())
    return "\n".join([*lines, "", f"{data['trials']} trials in {data['seconds']:.0f} s: {kinds}.", ""])


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    return {"trials": f"{data['trials']:,}", "trials/s": f"{data['trials'] / data['seconds']:.1f}"}


if __name__ == "__main__":
    run(__name__)
