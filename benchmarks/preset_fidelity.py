"""Is the preset `metaschedule` the stock algorithm? (20 minutes)

The same operators, measurer and parameters on both sides, with a smaller population than both have by default.
One side is TVM's own: one search context, its evolutionary search, its XGBModel, its in-memory database, driven in the
order of its task scheduler. The other is ours: a context made anew for every round, the database refilled from what was
measured, our cost model. Both measure on `LocalMeasurer`, seeds interleaved. Shown: the sketches of both, and the best
time after each round, median and range over the seeds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream.tvm_bridge.imports import import_tvm_without_torch

import_tvm_without_torch()

from benchmarks.candidates import operators_of  # noqa: E402
from benchmarks.runner import run  # noqa: E402
from benchmarks.spread import with_range  # noqa: E402
from slipstream.cost.features import extract_possible  # noqa: E402
from slipstream.cost.metaschedule import MetaSchedule  # noqa: E402
from slipstream.cost.types import Example  # noqa: E402
from slipstream.machine.target import resolve_target  # noqa: E402
from slipstream.measure import Candidate, LocalMeasurer, reference_text  # noqa: E402
from slipstream.program.space import Space  # noqa: E402
from slipstream.program.trace import read_trace  # noqa: E402
from slipstream.search.evolutionary import Evolution, Evolutionary  # noqa: E402
from slipstream.search.types import Measured, Question  # noqa: E402
from slipstream.tvm_bridge.intrinsics import import_intrinsics  # noqa: E402

_OPERATORS = (("resnet18", "conv2d 1x1/2 128→256 14x14 + add"), ("resnet18", "matmul 1x512x1000 + add"))
QUICK = {"seeds": 1, "rounds": 2, "trials": 8, "population": 32, "operators": 1}


def time_programs(measurer: LocalMeasurer, key: str, texts: list[str]) -> list[float]:
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
            seconds = time_programs(measurer, space.key, texts)
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
    model = MetaSchedule(seed, threads=1)
    known: list[Measured] = []
    curve: list[float] = []
    for number in range(options.rounds):
        question = Question(space, options.trials, 1000 * seed + number, known, model.score)
        realized = search.propose(question)
        seconds = time_programs(measurer, space.key, [r.text for r in realized])
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


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--population", type=int, default=128)
    parser.add_argument("--generations", type=int, default=2)
    parser.add_argument("--operators", type=int, default=len(_OPERATORS))


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    import_intrinsics()
    target = resolve_target("cpu")
    for model, name in _OPERATORS[: options.operators]:
        operator = next(o for o in operators_of(model, target) if o.name == name)
        space = Space(operator.key, operator.func, target)
        curves: dict[str, list[list[float]]] = {"stock": [], "preset": []}
        for seed in range(options.seeds):
            sides = [("stock", stock), ("preset", preset)]
            for side, search in sides if seed % 2 else reversed(sides):
                # A measurer of its own, so that no side profits from what the other has built.
                with LocalMeasurer(target, {operator.key: reference_text(operator.func)}) as measurer:
                    curves[side].append(search(space, measurer, seed + 1, options))
        generated, same = sketches(space)
        yield name, {"sketches": generated, "same_sketches": same, "trials": options.trials, **curves}


def markdown(data: Mapping[str, Any]) -> str:
    rounds = len(next(iter(data.values()))["stock"][0])
    lines = ["| µs | | " + " | ".join(f"round {number + 1}" for number in range(rounds)) + " |"]
    lines += ["| --- | --- |" + " --- |" * rounds]
    for name, result in data.items():
        for side in ("stock", "preset"):
            columns = zip(*([1e6 * best for best in run] for run in result[side]), strict=True)
            cells = [with_range(column, 1) for column in columns]
            lines.append(f"| {name if side == 'stock' else ''} | {side} | {' | '.join(cells)} |")
    lines += ["", "Best time so far, median and range over seeds.", ""]
    for name, result in data.items():
        seeds, same = len(result["stock"]), f"{result['same_sketches']} of {result['sketches']}"
        lines.append(f"- {name}: {seeds} seeds, rounds of {result['trials']}; {same} sketches are the same.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run(__name__)
