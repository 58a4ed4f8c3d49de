"""Thousands of trials in one go: does memory stay flat, does nothing get lost?

    python -m benchmarks.endurance [--trials 2000]

Random programs of a small matmul, every twentieth of which crashes. Notes the memory of this process and of the
server's family every hundred trials; exits with an error if either grew by more than 10 % and 30 MB over the second
half, if a trial got no answer, or if a process is left over.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from slipstream.cli.tvm_import import import_tvm_without_torch

import_tvm_without_torch()

import tvm  # noqa: E402
from tvm import s_tir, te, tirx  # noqa: E402

from slipstream.measure import Candidate, LocalMeasurer, reference_text  # noqa: E402
from slipstream.target import resolve_target  # noqa: E402

_SIZE = 64
_KEY = "matmul"


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/endurance.json"))
    options = parser.parse_args()
    began = time.monotonic()
    memory: list[dict[str, float]] = []
    kinds: Counter[str] = Counter()
    with LocalMeasurer(resolve_target(), {_KEY: reference_text(matmul())}) as measurer:
        server = measurer._runner.server.pid
        stream = measurer.measure(programs(options.trials, np.random.default_rng(0)))
        for number, measurement in enumerate(stream, start=1):
            kinds["duplicate" if measurement.duplicate else str(measurement.failure and measurement.failure.kind)] += 1
            if number % 100 == 0 or number == options.trials:
                own = psutil.Process().memory_info().rss / 1e6
                memory.append(
                    {"trials": number, "own_mb": own, "server_mb": psutil.Process(server).memory_info().rss / 1e6}
                )
                print(f"{number:5} trials, {time.monotonic() - began:6.1f} s, {memory[-1]}", flush=True)
    seconds = time.monotonic() - began
    left = [p for p in psutil.Process().children(recursive=True) if p.is_running()]
    result = {"trials": options.trials, "seconds": seconds, "kinds": kinds, "memory": memory, "load": os.getloadavg()}
    options.output.write_text(json.dumps(result, indent=1))
    print(f"{options.trials} trials in {seconds:.0f} s: {dict(kinds)}; {len(left)} processes left")
    half = memory[len(memory) // 2 :]
    for what in ("own_mb", "server_mb"):
        growth = half[-1][what] - half[0][what]
        print(f"{what}: {half[0][what]:.0f} -> {half[-1][what]:.0f}")
        if growth > 30 and growth > 0.1 * half[0][what]:
            raise SystemExit(f"{what} grew by {growth:.0f} MB over the second half")
    if sum(kinds.values()) != options.trials or left:
        raise SystemExit("a trial got no answer, or a process is left")


if __name__ == "__main__":
    main()
