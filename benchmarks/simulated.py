"""Sessions simulated on recorded measurements: what a change of the method does at equal trials (20 minutes).

Nothing is measured. The loop, the scheduler and the search are the real ones; a program takes the seconds that were
recorded for it or, if it was never measured, those that trees fitted to the recorded programs of its operator and
sketch predict. A session takes twenty seconds of one core in place of a hundred of a quiet machine. This is for
choosing between ideas; real sessions (`benchmarks.ablation`) judge what was chosen.

`--record FOLDER` makes the recording of all sessions of zoo models below that folder, for example those of
`benchmarks.ablation`. Their operators and sketches have to be those of today, with as many threads as here.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.ablation import VARIANTS, WITH_OURS, from_scratch
from benchmarks.ablation_table import WHOLE
from benchmarks.recorded_programs import Recording, record
from benchmarks.runner import RESULTS, run
from benchmarks.spread import geometric_interval, table
from slipstream.errors import SlipstreamError

RECORDING = RESULTS / "recorded_programs.json.gz"
QUICK = {"seeds": 1, "trials": 60, "models": ["resnet18"], "variants": "everything,no relatives"}
_MARKS = (0.25, 0.5, 0.75, 1.0)  # of the trials
_DEFAULT = "everything,no relatives,long first slots,posterior not updated,gradient for DynaTune"
_PEAK_FLOPS = 2e11
_BUILD_SECONDS = 0.4
_RUNS = 20  # of a program that is timed


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", help="[all that are recorded]")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--variants", default=_DEFAULT, help="of benchmarks.ablation, with commas between")
    parser.add_argument("--recording", type=Path, default=RECORDING)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="first make the recording anew")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    if options.record is not None:
        recorded = record(options.record)
        options.recording.write_bytes(gzip.compress(json.dumps(recorded).encode(), mtime=0))
    names = list(dict.fromkeys([WHOLE, *options.variants.split(",")]))
    possible = [name for name in VARIANTS if name != WITH_OURS]  # MetaSchedule's sketches alone are recorded
    if unknown := set(names) - set(possible):
        raise SlipstreamError(f"no variant to simulate is called {', '.join(unknown)}: there are {', '.join(possible)}")
    if not options.recording.exists():
        raise SlipstreamError(f"there is no recording {options.recording}: make one with --record FOLDER")
    known = json.loads(gzip.decompress(options.recording.read_bytes()))
    models = options.models or list(known)
    if missing := set(models) - set(known):
        raise SlipstreamError(f"{', '.join(missing)} is not recorded: there are {', '.join(known)}")
    seeds = range(options.seed, options.seed + options.seeds)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        for model in models:
            runs: dict[str, dict[str, Any]] = {name: {} for name in names}
            wanted = list(product(names, seeds))
            jobs = [(str(options.recording), model, name, seed, options.trials) for name, seed in wanted]
            simulated = list(processes.map(_simulated, jobs))
            for (name, seed), (ratios, _) in zip(wanted, simulated, strict=True):
                runs[name][str(seed)] = ratios
            yield model, {"trials": options.trials, "accuracy": simulated[0][1], "runs": runs}


@cache
def _recording(path: str, model: str) -> Recording:
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    return Recording(model, json.loads(gzip.decompress(Path(path).read_bytes()))[model])


def _simulated(job: tuple[str, str, str, int, int]) -> tuple[list[float], float]:
    """Latencies relative to the floor after the shares `_MARKS` of the trials, and the recording's accuracy."""
    path, model, name, seed, trials = job
    recording = _recording(path, model)
    return simulate(recording, seed, trials, from_scratch(name)), recording.accuracy


def simulate(recording: Recording, seed: int, trials: int, options: Mapping[str, Any]) -> list[float]:
    from slipstream import plugins
    from slipstream.session.budget import Budget
    from slipstream.session.context import context_of
    from slipstream.session.events import Snapshot
    from slipstream.session.families import Families
    from slipstream.session.loop import Session
    from slipstream.session.operator_trials import OperatorTrials, operator_record
    from slipstream.session.settings import make_settings
    from slipstream.store import Store

    others = {"in_flight": 1, "priors": None, "seed": seed, **options["settings"]}
    settings = make_settings(others=others, **{k: v for k, v in options.items() if k != "settings"})
    operators = {one.key: OperatorTrials(one, recording.spaces[one.key]) for one in recording.operators}
    weights = {one.key: one.weight for one in recording.operators}
    context = context_of(settings, _PEAK_FLOPS, target=recording.target)
    budget, unknown = Budget(trials=trials), math.inf
    measurer = _Measurer(recording)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "store.db") as store:
        hardware = store.add_hardware({"kind": "simulated"})
        store.add_model("simulated", "simulated", "simulated")
        store.add_operators(map(operator_record, recording.operators))
        name = store.create_session("simulated", hardware, {}, weights)
        remaining = budget.remaining(0, 0, unknown, unknown)
        with store.own(name):
            session = Session(
                store=store,
                session=name,
                hardware=hardware,
                operators=operators,
                find_families=lambda: Families(operators, settings.families),
                measurer=measurer,
                scheduler=plugins.make("scheduler", settings.scheduler, context, **settings.scheduler_options()),
                search=plugins.make("search", settings.search, context),
                cost=plugins.make("cost", settings.cost, context),
                settings=settings,
                budget=budget,
                snapshot=Snapshot(name, "", "", "prepare", 0.0, remaining, unknown, unknown, [], []),
                watcher=lambda event, snapshot: None,
                clock=lambda: measurer.seconds,
                peak_flops=_PEAK_FLOPS,
            )
            measurer.session = session
            session.run()
            latencies = list(_latencies(store.trials(session=name), weights))
    return [round(latencies[int(share * len(latencies)) - 1] / recording.floor, 4) for share in _MARKS]


class _Measurer:
    """SIMULATES: what the recording says of the program that the session has under a candidate's label."""

    def __init__(self, recording: Recording) -> None:
        self.seconds = 0.0
        self.session: Any = None  # its programs are looked up in
        self._recording = recording

    def measure(self, programs: Iterable[Any]) -> Iterator[Any]:
        from slipstream.measure.types import Measurement

        for candidate in programs:
            seconds = self._recording.seconds(candidate.operator, self.session.program(candidate.label))
            self.seconds += _BUILD_SECONDS + _RUNS * seconds
            yield Measurement(candidate, (seconds,) * 3, verified=True, build_seconds=_BUILD_SECONDS)

    def close(self) -> None:
        """Nothing to release."""


def _latencies(trials: Iterable[Any], weights: Mapping[str, int]) -> Iterator[float]:
    """The sum of operators after every trial; infinite while one has none."""
    best = dict.fromkeys(weights, math.inf)
    for trial in trials:
        best[trial.operator] = min(best[trial.operator], trial.median)
        yield sum(weights[key] * seconds for key, seconds in best.items())


def markdown(data: Mapping[str, Any]) -> str:
    """Ratios to the whole method's session with the same model and seed, geometric means over both."""
    trials = next(iter(data.values()))["trials"]
    marks = [f"after {int(share * trials)}" for share in _MARKS]
    floors = [
        [model, *(f"{median(v):.2f}" for v in zip(*one["runs"][WHOLE].values(), strict=True)), f"{one['accuracy']:.2f}"]
        for model, one in data.items()
    ]
    lines = ["Simulated: latency to that of the fastest recorded programs, medians over seeds.", ""]
    lines += table(["model", *marks, "accuracy"], floors)
    lines += ["", "Simulated: latency to that of everything after as many trials, with 95 % intervals.", ""]
    rows = [[name, *cells] for name, cells in compared(data).items()]
    return "\n".join([*lines, *table(["variant", *marks], rows)]) + "\n"


def compared(data: Mapping[str, Any]) -> dict[str, list[str]]:
    names = next(iter(data.values()))["runs"]
    found = {}
    for name in names:
        if name == WHOLE:
            continue
        pairs = [
            (one["runs"][name][seed], whole) for one in data.values() for seed, whole in one["runs"][WHOLE].items()
        ]
        ratios = [[own / whole for own, whole in zip(*pair, strict=True)] for pair in pairs]
        found[name] = [_interval(values) for values in zip(*ratios, strict=True)]
    return found


def _interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}"
    return "{:.2f} ({:.2f} - {:.2f})".format(*geometric_interval(values))


if __name__ == "__main__":
    run(__name__)
