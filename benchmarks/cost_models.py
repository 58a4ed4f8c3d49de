"""How well cost models rank an operator's programs after few measurements, and the cost of training (4 minutes).

An operator is held out: a third of its programs is for testing, the others are learned in rounds of 16.
  alone        TVM's method on the programs of this operator only
  stock        TVM's method and defaults: one model for all operators, trained from nothing when it has a fifth more
  retrained    the same, trained from nothing after every round
  incremental  ours: pre-trained on the other operators, fine-tuned on this one
The settings of `incremental` were chosen on the first, third, fifth... operator of the recording, so only the others
are held out here. `best_of_top` is the fastest of the 4 highest scores, relative to the fastest of all.
`--record 112` measures 9 x 112 random programs anew. The recording comes from a busy machine and is noisy.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.runner import RESULTS, run
from benchmarks.spread import table
from slipstream.cost import CostModel
from slipstream.cost.accuracy import best_of_top, pair_accuracy
from slipstream.cost.examples import Examples
from slipstream.cost.metaschedule import MetaSchedule
from slipstream.cost.types import Example
from slipstream.plugins import Context, make

RECORDING = RESULTS / "cost_examples.npz"
QUICK = {"seeds": 1, "operators": 2}
FIGURES = {
    "pair_accuracy": "Pairs in the right order",
    "best_of_top": "The fastest of the four highest scores, relative to the fastest",
    "seconds": "Seconds of learning",
}
# Model of the zoo -> names of its operators.
OPERATORS = {
    "resnet18": (
        "conv2d 3x3 64→64 56x56 + add + relu",
        "conv2d 3x3 128→128 28x28 + add + relu",
        "conv2d 3x3 256→256 14x14 + add + relu",
        "conv2d 3x3 512→512 7x7 + add + relu",
        "conv2d 3x3/2 64→128 28x28 + add + relu",
        "conv2d 1x1/2 64→128 28x28 + add",
    ),
    "bert_base": (
        "matmul 128x768x768 + add",
        "matmul 128x768x3072 + add + gelu",
        "matmul 128x3072x768 + add + add",
    ),
}
MODELS = ("alone", "stock", "retrained", "incremental")
_ROUND = 16
_TOP = 4


def record(count: int, seed: int) -> None:
    """Measure `count` random programs of each operator, and keep their features and times."""
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    import tvm

    from benchmarks.candidates import operators_of, sample_programs
    from slipstream.cost.features import extract
    from slipstream.machine.target import resolve_target
    from slipstream.measure import cpu_measurer, reference_text

    target = resolve_target()
    known = {operator.name: operator for model in OPERATORS for operator in operators_of(model, target)}
    operators = [known[name] for names in OPERATORS.values() for name in names]
    rng = np.random.default_rng(seed)
    examples: list[Example] = []
    noisy = 0
    with cpu_measurer(target, {operator.key: reference_text(operator.func) for operator in operators}) as measurer:
        for operator in operators:
            began = time.perf_counter()
            measured = list(measurer.measure(sample_programs(operator, target, count, rng)))
            features = extract([tvm.ir.load_json(m.program.module) for m in measured], target)
            examples += [Example(operator.name, f, m.median) for f, m in zip(features, measured, strict=True)]
            noisy += sum(m.noisy for m in measured)
            failures = sum(m.failure is not None for m in measured)
            print(f"{operator.name}: {failures} failures, {time.perf_counter() - began:.0f} s", flush=True)
            about = {"cpu": target.cpu, "threads": target.threads, "load": os.getloadavg(), "noisy": noisy}
            np.savez_compressed(RECORDING, **about, **Examples(examples).arrays())
    print(f"{RECORDING}: {len(examples)} programs, {RECORDING.stat().st_size / 1e6:.2f} MB")


def read() -> dict[str, list[Example]]:
    """The recording by operator, without the failures: they have no rank."""
    operators: dict[str, list[Example]] = defaultdict(list)
    with np.load(RECORDING) as recording:
        for example in Examples.from_arrays(recording):
            if np.isfinite(example.seconds):
                operators[example.operator].append(example)
    return operators


def new_model(name: str) -> CostModel:
    """The model of that name in `MODELS`, with nothing learned."""
    if name == "incremental":
        return make("cost", "incremental", Context(seed=0, threads=1))
    if name == "stock":
        return make("cost", "metaschedule", Context(seed=0, threads=1))
    return MetaSchedule(0, threads=1, warm_up=1, growth=1.0)


def pre_train(name: str, others: list[Example]) -> bytes:
    """The state of a model when all other operators have been tuned, one after the other."""
    model = new_model("stock" if name == "retrained" else name)
    for start in range(0, len(others), _ROUND):
        model.learn(others[start : start + _ROUND])
    # Both are TVM's method: they differ in when they train again.
    return model.state()


def held_out(operators: dict[str, list[Example]], seeds: int) -> list[dict[str, Any]]:
    """Accuracy on the operators no setting was chosen on, as more of each is learned: mean over them and seeds."""
    points: dict[tuple[str, int], list[tuple[float, float, float]]] = defaultdict(list)
    for operator in list(operators)[1::2]:
        own = operators[operator]
        others = [example for name, examples in operators.items() if name != operator for example in examples]
        for name in MODELS:
            state = pre_train(name, [] if name == "alone" else others)
            for seed in range(seeds):
                model = new_model(name)
                model.restore(state)
                for seen, *figures in tune(model, own, np.random.default_rng(seed)):
                    points[name, seen].append(tuple(figures))
        print(f"held out: {operator}", flush=True)
    return [
        {
            "model": name,
            "seen": seen,
            "pair_accuracy": mean(accuracy for accuracy, _, _ in values),
            "best_of_top": mean(best for _, best, _ in values),
            "seconds": mean(seconds for _, _, seconds in values),
        }
        for (name, seen), values in points.items()
    ]


def tune(model: CostModel, own: list[Example], rng: np.random.Generator) -> Iterator[tuple[int, float, float, float]]:
    """Learn an operator in rounds; yields programs seen, accuracy and best of the top on the others, seconds."""
    test, rest = np.split(rng.permutation(len(own)), [len(own) // 3])
    asked = [own[i].features for i in test]
    truth = np.array([own[i].seconds for i in test])
    for seen in range(0, len(rest) + 1, _ROUND):
        began = time.perf_counter()
        if seen:
            model.learn([own[i] for i in rest[seen - _ROUND : seen]])
        seconds = time.perf_counter() - began
        scores = model.score(asked)
        yield seen, pair_accuracy(scores, truth), best_of_top(scores, truth, _TOP), seconds


def training_seconds(operators: dict[str, list[Example]]) -> list[dict[str, Any]]:
    """What the rounds cost when operators are tuned in turn, 32 programs a round."""
    everything = [example for examples in operators.values() for example in examples]
    order = np.random.default_rng(0).permutation(len(everything))
    rows = []
    for name in MODELS[1:]:
        model = new_model(name)
        rounds = []
        for start in range(0, len(order), 32):
            began = time.perf_counter()
            model.learn([everything[i] for i in order[start : start + 32]])
            rounds.append(time.perf_counter() - began)
        rows.append({"model": name, "examples": len(order), "total": sum(rounds), "rounds": rounds})
    return rows


def markdown(data: Mapping[str, Any]) -> str:
    points = {(point["model"], point["seen"]): point for point in data["held_out"]}
    lines = []
    for figure, title in FIGURES.items():
        lines += [f"{title}, by how many of the operator's own programs are known:", ""]
        rows = [[n, *(f"{points[name, n][figure]:.3f}" for name in MODELS)] for n in sorted({n for _, n in points})]
        lines += [*table(["known", *MODELS], rows), ""]
    rows = []
    for row in data["training"]:
        last, total = row["rounds"][-8:], f"{row['total']:.2f} ({row['examples']} programs)"
        rows.append([row["model"], total, f"{median(last):.3f}, {max(last):.3f}"])
    lines += table(["", "learning all programs, rounds of 32, s", "of the last 8 rounds: median, most"], rows)
    return "\n".join(lines) + "\n"


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    found = {f"{row['model']}: learning, s": f"{row['total']:.1f}" for row in data["training"]}
    for point in data["held_out"]:
        found[f"{point['model']}, {point['seen']} known"] = f"{point['pair_accuracy']:.2f}"
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", type=int, metavar="COUNT", help="programs to measure of each operator first")
    parser.add_argument("--seeds", type=int, default=4, help="orders in which an operator's programs are learned")
    parser.add_argument("--operators", type=int, help="only the first so many of the recording")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.record:
        record(options.record, options.seed)
    operators = dict(list(read().items())[: options.operators])
    training = training_seconds(operators)
    return {"seeds": options.seeds, "training": training, "held_out": held_out(operators, options.seeds)}


if __name__ == "__main__":
    run(__name__)
