"""Is the preset `metaschedule` the stock algorithm? The same operators, measurer and parameters on both sides.

    python -m benchmarks.preset_fidelity [--seeds 5] [--rounds 3] [--trials 32] [--population 128] [--generations 2]

One side is TVM's own: one search context, its evolutionary search, its XGBModel, its in-memory database, driven in the
order of its task scheduler. The other is ours: a context made anew for every round, the database refilled from what was
measured, our cost model. Both measure on `LocalMeasurer`, seeds interleaved. Shown: the sketches of both, and the best
time after each round, median and range over the seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.cli.tvm_import import import_tvm_without_torch

import_tvm_without_torch()

from benchmarks.candidates import operators_of  # noqa: E402
from slipstream import cost  # noqa: E402
from slipstream.cost.features import extract_possible  # noqa: E402
from slipstream.cost.types import Example  # noqa: E402
from slipstream.measure import Candidate, LocalMeasurer, reference_text  # noqa: E402
from slipstream.program.space import Space  # noqa: E402
from slipstream.program.trace import read_trace  # noqa: E402
from slipstream.search.evolutionary import Evolution, Evolutionary  # noqa: E402
from slipstream.search.types import Measured, Question  # noqa: E402
from slipstream.target import resolve_target  # noqa: E402
from slipstream.tvm_intrinsics import import_intrinsics  # noqa: E402

_OPERATORS = (("resnet18", "conv2d 1x1/2 128→256 14x14 + add"), ("resnet18", "matmul 1x512x1000 + add"))


def measure(measurer: LocalMeasurer, key: str, texts: list[str]) -> list[float]:
    """Seconds of each program, in order; infinite for a failure."""
    seconds = [math.inf] * len(texts)
    for measurement in measurer.measure(Candidate(key, text, str(n)) for n, text in enumerate(texts)):
        seconds[int(measurement.program.label)] = measurement.median
    return seconds


def stock(space: Space, measurer: LocalMeasurer, seed: int, options: argparse.Namespace) -> list[float]:
    """TVM's own parts, as its task scheduler uses them; the best time after each round."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    database, model = ms.database.MemoryDatabase(), ms.cost_model.XGBModel()
    workload = database.commit_workload(space.mod)
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=options.population, genetic_num_iters=options.generations
    )
    best, curve = math.inf, []
    with space.target.tvm:
        context = space.context(seed, search_strategy=strategy, num_threads=space.target.threads)
        context.pre_tuning(options.rounds * options.trials, options.trials, None, database, model)
        for _ in range(options.rounds):
            candidates = context.generate_measure_candidates() or []
            texts = [str(tvm.ir.save_json(candidate.sch.mod)) for candidate in candidates]
            seconds = measure(measurer, space.key, texts)
            results = [
                ms.runner.RunnerResult([s], None) if math.isfinite(s) else ms.runner.RunnerResult(None, "failed")
                for s in seconds
            ]
            context.notify_runner_results(candidates, results)
            for candidate, s in zip(candidates, seconds, strict=True):
                if math.isfinite(s):
                    record = ms.database.TuningRecord(
                        candidate.sch.trace, workload, [s], space.target.tvm, candidate.args_info
                    )
                    database.commit_tuning_record(record)
            model.update(context, candidates, results)
            best = min([best, *seconds])
            curve.append(best)
        context.post_tuning()
    return curve


def preset(space: Space, measurer: LocalMeasurer, seed: int, options: argparse.Namespace) -> list[float]:
    """Our parts, as a session uses them."""
    search = Evolutionary(
        space.target.threads,
        Evolution(population_size=options.population, genetic_num_iters=options.generations),
    )
    model = cost.make("metaschedule", seed=seed, threads=1)
    known: list[Measured] = []
    curve: list[float] = []
    for number in range(options.rounds):
        question = Question(space, options.trials, 1000 * seed + number, known, model.score)
        realized = search.propose(question)
        seconds = measure(measurer, space.key, [r.text for r in realized])
        known += [Measured(r.program, s) for r, s in zip(realized, seconds, strict=True)]
        rows = extract_possible([r.module for r in realized], space.target)
        model.learn([Example(space.key, f, s) for f, s in zip(rows, seconds, strict=True) if f is not None])
        curve.append(min(m.seconds for m in known))
    return curve


def sketches(space: Space) -> tuple[int, int]:
    """(sketches TVM generates, how many of them ours has under the same digest)."""
    with space.target.tvm:
        generated = space.context(7).generate_design_space()
    ours = {example.sketch.digest for example in space.stock}
    found = {read_trace(schedule.trace, space.names)[0].digest for schedule in generated}
    return len(found), len(found & ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--population", type=int, default=128)
    parser.add_argument("--generations", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/preset_fidelity.json"))
    options = parser.parse_args()
    import_intrinsics()
    target = resolve_target("cpu")
    raw: dict[str, Any] = {"options": {**vars(options), "output": ""}, "load_before": os.getloadavg(), "operators": {}}
    for model, name in _OPERATORS:
        operator = next(o for o in operators_of(model, target) if o.name == name)
        space = Space(operator.key, operator.func, target)
        curves: dict[str, list[list[float]]] = {"stock": [], "preset": []}
        began = time.time()
        for seed in range(options.seeds):
            sides = [("stock", stock), ("preset", preset)]
            for side, run in sides if seed % 2 else reversed(sides):
                # A measurer of its own, so that no side profits from what the other has built.
                with LocalMeasurer(target, {operator.key: reference_text(operator.func)}) as measurer:
                    curves[side].append(run(space, measurer, seed + 1, options))
        generated, same = sketches(space)
        raw["operators"][name] = {"sketches": generated, "same_sketches": same, **curves}
        print(f"{name}: {same} of {generated} sketches the same, {time.time() - began:.0f} s")
        for side, runs in curves.items():
            rounds = np.array(runs) * 1e6
            cells = [f"{statistics.median(c):.1f} ({min(c):.1f}-{max(c):.1f})" for c in rounds.T]
            print(f"  {side:7} best µs after each round of {options.trials}: {', '.join(cells)}")
    raw["load_after"] = os.getloadavg()
    options.output.write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    main()
