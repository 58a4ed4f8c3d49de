"""`torch.compile` with our backend against eager PyTorch and inductor (12 minutes).

Every side is a process of its own with the same module, seed and number of threads, under `torch.inference_mode()`;
inductor freezes parameters, as ours does. Sides take turns, a round each. At the end the tuned side is started once
more, for the time of its first call. BERT needs `transformers`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.runner import run
from benchmarks.spread import table, with_quartiles

EAGER, INDUCTOR, AUTOTUNED, UNTUNED, TUNED = "eager", "inductor", "inductor max-autotune", "untuned", "tuned"
SIDES = (EAGER, INDUCTOR, AUTOTUNED, UNTUNED, TUNED)
_NEXT = "next process"
_LARGEST_ERROR = 1e-3
QUICK = {"models": ["encoder"], "sides": [EAGER, INDUCTOR, UNTUNED], "rounds": 3, "seconds": 0.1}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", help="[all that benchmarks/torch_models.py has]")
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--budget", default="60s", help="of tuning")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.5, help="of calls in each round")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from benchmarks.torch_models import MODELS
    from slipstream.machine.target import available_cores

    installed = {name for name in MODELS if name != "bert_small" or find_spec("transformers")}
    for model in options.models or sorted(installed, key=list(MODELS).index):
        folder = options.work / model
        shutil.rmtree(folder, ignore_errors=True)
        job = {"model": model, "threads": available_cores(), "budget": options.budget, "folder": str(folder)}
        job |= {"seed": options.seed, "seconds": options.seconds}
        sides = {side: _Side(side, job) for side in options.sides}
        rounds: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, process in sides.items():
                if not process.failed:
                    rounds[side].append(process.ask("round"))
        found = {side: {**process.about, "rounds": rounds[side]} for side, process in sides.items()}
        for process in sides.values():
            process.end()
        if TUNED in sides:
            again = _Side(TUNED, {**job, "budget": None})
            found[TUNED][_NEXT] = again.about.get("first call")
            again.end()
        yield model, {"threads": job["threads"], "budget": options.budget, "sides": found}


class _Side:
    """A process in which one side has made its first call."""

    def __init__(self, side: str, job: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, side, dict(job)))
        self._process.start()
        theirs.close()
        self.about: dict[str, Any] = self._receive()
        self.failed = "failed" in self.about

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except EOFError:
            return {"failed": "the process ended"}

    def ask(self, what: str) -> Any:
        self._connection.send(what)
        return self._receive()

    def end(self) -> None:
        self._connection.close()
        self._process.join()


def _serve(connection: Any, side: str, job: Mapping[str, Any]) -> None:
    import torch

    try:
        torch.set_num_threads(job["threads"])
        with torch.inference_mode():
            call, about = _opened(side, job)
            connection.send(about)
            while True:
                connection.recv()
                connection.send(_round(call, job["seconds"]))
    except EOFError:
        return
    except Exception as error:
        connection.send({"failed": f"{type(error).__name__}: {error}".splitlines()[0]})


def _opened(side: str, job: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The compiled module with its input, after its first call and, if it is tuned, its tuning."""
    import torch

    from benchmarks.torch_models import MODELS

    # Inductor's command of the C++ compiler splits a path at spaces.
    folder = side.replace(" ", "-")
    os.environ["SLIPSTREAM_TORCH_CACHE"] = str(Path(job["folder"], f"cache-{folder}"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(job["folder"], f"inductor-{folder}"))
    torch.manual_seed(job["seed"])
    make, inputs = MODELS[job["model"]]
    module, x = make().eval(), inputs()
    wanted = torch.utils._pytree.tree_leaves(_plain(module(x)))
    compiled = _compiled(side, module)
    began = time.perf_counter()
    compiled(x)
    about = {"first call": time.perf_counter() - began}
    if side == TUNED and job["budget"]:
        import slipstream.torch

        slipstream.torch.tune(compiled, budget=job["budget"])
    found = torch.utils._pytree.tree_leaves(_plain(compiled(x)))
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True))
    if error > _LARGEST_ERROR:
        raise ArithmeticError(f"differs from eager PyTorch by {error:.1e}")
    if side in (UNTUNED, TUNED):
        from slipstream.torch.graph import _graphs

        if not all(variant for graph in _graphs for variant in graph.variants.values()):
            raise RuntimeError("part of it ran in eager PyTorch")
    return lambda: compiled(x), about


def _plain(value: Any) -> Any:
    return value.to_tuple() if hasattr(value, "to_tuple") else value


def _compiled(side: str, module: Any) -> Any:
    import torch

    if side == EAGER:
        return module
    if side in (UNTUNED, TUNED):
        return torch.compile(module, backend="slipstream")
    from torch._inductor import config

    config.freezing = True
    return torch.compile(module, mode="max-autotune" if side == AUTOTUNED else None)


def _round(call: Any, seconds: float) -> float:
    """The median time of a call, after some that wake caches and threads."""
    for _ in range(3):
        call()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times)


def markdown(data: Mapping[str, Any]) -> str:
    rows, starts = [], []
    for model, result in data.items():
        sides = result["sides"]
        times = {side: found["rounds"] for side, found in sides.items() if found["rounds"]}
        cells = [
            with_quartiles(_ratios(times, side, EAGER), 2) if side in times else sides.get(side, {}).get("failed", "")
            for side in SIDES[1:]
        ]
        rivals = sorted((median(times[side]), side) for side in (INDUCTOR, AUTOTUNED) if side in times)
        against = with_quartiles(_ratios(times, TUNED, rivals[0][1]), 2) if rivals and TUNED in times else ""
        rows.append([model, f"{median(times[EAGER]) * 1e3:.2f}", *cells, against])
        firsts = [sides.get(side, {}).get("first call") for side in SIDES[1:4]] + [sides.get(TUNED, {}).get(_NEXT)]
        starts.append([model, *("" if seconds is None else f"{seconds:.1f}" for seconds in firsts)])
    names = [INDUCTOR, AUTOTUNED, "ours untuned", "ours tuned"]
    lines = table(["model", "eager, ms", *names, "ours tuned to the faster inductor"], rows)
    lines += ["", "Times as fast as eager PyTorch: median and quartiles over rounds that took turns."]
    lines += ["", "### First call, s", ""]
    lines += table(["model", *names[:3], "ours tuned, next process"], starts)
    return "\n".join(lines) + "\n"


def _ratios(times: Mapping[str, list[float]], side: str, other: str) -> list[float]:
    """How many times as fast as the other a side was, by round."""
    return [theirs / own for theirs, own in zip(times[other], times[side], strict=True)]


if __name__ == "__main__":
    run(__name__)
