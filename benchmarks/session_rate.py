"""How many trials a second a session makes on one machine, by cores, and what limits it (4 minutes).

ResNet-18 is tuned on parts of this machine's cores, for all of them and for two threads, until `--seconds` of tuning
have passed; trials of convolutions are counted. Start-up and default programs are left out. Seconds of a trial are
those of one core (build, search), of the cores that time (run, checks included), and of the session's own process
(store, schedule). The cores would allow

    cores / (build + search + cores that time x run)    trials a second, and one run at a time    1 / run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.runner import run
from benchmarks.spread import table
from slipstream.machine.target import available_cores
from slipstream.measure.devices.cores import divide_this_machine
from slipstream.session.directory import STORE
from slipstream.session.events import Event, Snapshot
from slipstream.session.settings import Settings
from slipstream.store import Store
from slipstream.tvm_bridge.imports import import_tvm_without_torch

QUICK = {"cores": [available_cores()], "threads": [0], "seconds": 10.0}
_MODEL = "zoo:resnet18"
_OWN = ("store", "schedule")


def arguments(parser: argparse.ArgumentParser) -> None:
    most = available_cores()
    fewer = [n for n in (2, 4, 8, 16, 32, 64) if n < most]
    parser.add_argument("--cores", type=int, nargs="+", default=[*fewer[-3:], most])
    parser.add_argument("--threads", type=int, nargs="+", default=[0, 2], help="of the target; 0: as many as cores")
    parser.add_argument("--seconds", type=float, default=30.0, help="of tuning, for each")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    import_tvm_without_torch()
    every = sorted(os.sched_getaffinity(0))
    for cores in options.cores:
        for threads in dict.fromkeys(wanted or cores for wanted in options.threads if wanted <= cores):
            os.sched_setaffinity(0, every[:cores])
            try:
                found = tune(options.work / f"{cores}-{threads}", threads, options.seconds, options.seed)
            finally:
                os.sched_setaffinity(0, every)
            yield f"{cores} cores, {threads} threads", found


class _EnoughError(BaseException):
    """Leaves a session in the middle; no `Exception`, which a session catches in its callbacks."""


def tune(folder: Path, threads: int, seconds: float, seed: int) -> dict[str, Any]:
    """Tune for so long; how many trials there were, and what they took."""
    import slipstream

    began: list[float] = []
    before, split = dict[str, float](), dict[str, float]()

    def watch(event: Event, snapshot: Snapshot) -> None:
        split.update(snapshot.split)
        if event.kind == "phase" and event.data["phase"] == "tune":
            began.append(time.monotonic())
            before.update(snapshot.split)
        elif event.kind == "trial" and began and time.monotonic() - began[0] >= seconds:
            raise _EnoughError

    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(_EnoughError):
        slipstream.tune(_MODEL, folder, threads=threads, seed=seed, callbacks=[watch], progress=False)
    elapsed = time.monotonic() - began[0]
    with Store.open(folder / STORE, create=False) as store:
        (record,) = store.sessions()
        slots = [slot for slot in store.slots(record.id) if not slot.note.get("phase")]
        names = {operator.key: operator.name for operator in store.operators()}
        given = {slot.slot for slot in slots}
        trials = [trial for trial in store.trials(session=record.id) if trial.slot in given]
        settings = Settings.from_json(record.options["settings"])
    shutil.rmtree(folder)
    ran = [trial for trial in trials if not trial.duplicate]
    cores = divide_this_machine(threads)
    return {
        "cores": available_cores(),
        "threads": threads,
        "beside": len(cores.beside),
        "in_flight": settings.in_flight,
        "searches": settings.searches,
        "seconds": elapsed,
        "trials": len(trials),
        "convolutions": sum("conv2d" in names[trial.operator] for trial in trials),
        "failures": sum(trial.failure is not None for trial in trials),
        "noisy": sum(trial.noisy for trial in trials),
        "ran": len(ran),
        "build": sum(trial.build_seconds for trial in ran),
        "run": sum(trial.run_seconds for trial in ran),
        "search": sum(slot.search_seconds for slot in slots),
        **{name: split.get(name, 0.0) - before.get(name, 0.0) for name in _OWN},
    }


def rate(found: Mapping[str, Any]) -> float:
    """Trials of convolutions a second."""
    return float(found["convolutions"] / found["seconds"])


def allowed(found: Mapping[str, Any]) -> float:
    """Trials a second that the cores would allow if none of them ever waited."""
    building = found["build"] + found["search"]
    timing = found["cores"] - found["beside"]
    slowest = max((building + timing * found["run"]) / found["cores"], found["run"])
    return float(found["trials"] / slowest)


def markdown(data: Mapping[str, Any]) -> str:
    rates, splits = [], []
    for found in data.values():
        where = [found["cores"], found["threads"]]
        busy = [found["build"] / found["cores"], found["search"] / found["cores"], found["run"]]
        shares = [f"{share / found['seconds']:.0%}" for share in busy]
        rates.append([*where, f"{rate(found):.1f}", f"{allowed(found):.1f}", *shares])
        each = [1e3 * found[name] / max(1, found["trials"]) for name in ("build", "run", "search", *_OWN)]
        counts = [found[name] for name in ("trials", "noisy", "failures", "in_flight", "searches", "beside")]
        splits.append([*where, *(f"{value:.1f}" for value in each), *counts])
    columns = ["trials a second", "cores would allow", "cores build", "cores search", "one is timed"]
    parts = ["build", "run", "search", *_OWN]
    counted = ["trials", "noisy", "failed", "slots in flight", "searches", "cores beside"]
    lines = table(["cores", "threads", *columns], rates)
    return "\n".join([*lines, "", *table(["cores", "threads", *(f"{p}, ms a trial" for p in parts), *counted], splits)])


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    return {f"trials/s on {part}": f"{rate(found):.1f}" for part, found in data.items()}


if __name__ == "__main__":
    run(__name__)
