"""Whether operators take as long in a model as the tuner measures them (a minute a model).

Models are compiled untuned. In turns, the model is called back to back, its library's clock timing every step, and the
tuner's measurer times the default program of each operator, in new processes. Each is what the faster third of its
turns took, since other load only ever makes things slower. `whole model` over `operators` is what a session's two
figures for the same thing would differ by. What is left between the steps of a call is the difference of the first two
columns; the steps' times are of calls with a clock read between them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import run
from benchmarks.spread import table
from slipstream.runtime.plan import prepared_name

_MODELS = ("tiny_cnn", "squeezenet1_1", "mobilenet_v2", "resnet18", "transformer_encoder")
_TURN_SECONDS = 1.5
_QUANTILE = 0.33
_MOST_ROWS = 2
QUICK = {"models": ["tiny_cnn"], "turns": 1}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=list(_MODELS), help="of the zoo")
    parser.add_argument("--turns", type=int, default=5)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    for model in options.models:
        yield model, compare(model, options.work / model, options.turns)


def compare(model: str, folder: Path, turns: int) -> dict[str, Any]:
    import slipstream
    from slipstream.frontends import load_model
    from slipstream.graph.operators import extract_operators
    from slipstream.graph.prepare import prepare
    from slipstream.machine.target import resolve_target

    target = resolve_target("cpu")
    if not folder.exists():
        slipstream.compile(f"zoo:{model}", folder)
    call = _Call(folder, target.threads)
    operators = extract_operators(prepare(load_model(f"zoo:{model}").module, target)[0])
    alone: dict[str, list[float]] = {}
    for _ in range(turns):
        call.take_turn()
        for key, seconds in _measured(operators, target).items():
            alone.setdefault(key, []).append(seconds)
    by_function = {name: operator for operator in operators for name in operator.functions}
    steps = []
    for name, seconds in call.steps():
        operator = by_function.get(prepared_name(name))
        if operator is not None and operator.key in alone:
            steps.append([operator.name, seconds, float(np.quantile(alone[operator.key], _QUANTILE))])
    return {"threads": target.threads, "whole": float(np.quantile(call.whole, _QUANTILE)), "steps": steps}


class _Call:
    """A compiled model that is called, with and without a clock between its steps."""

    def __init__(self, folder: Path, threads: int) -> None:
        from slipstream.artifact.check import check_artifact
        from slipstream.runtime.library import ModelLibrary

        (part,) = check_artifact(folder).single_shapes[0].all_parts
        weights = folder / part.weights_file
        self._library = ModelLibrary(folder / part.file, part.prefix, weights, part.outputs, threads)
        rng = np.random.default_rng(0)
        self._inputs = [np.ascontiguousarray(rng.standard_normal(one.shape).astype(one.dtype)) for one in part.inputs]
        self.whole: list[float] = []
        self._steps: list[Any] = []

    def take_turn(self) -> None:
        ends = time.perf_counter() + _TURN_SECONDS
        self._library.run(self._inputs)  # it finds caches as something else left them
        while time.perf_counter() < ends:
            began = time.perf_counter()
            self._library.run(self._inputs)
            self.whole.append(time.perf_counter() - began)
            self._steps.append(self._library.profile(self._inputs))

    def steps(self) -> Iterator[tuple[str, float]]:
        """The function of each step and its seconds."""
        seconds = np.quantile(np.array(self._steps), _QUANTILE, axis=0) / 1e9
        return zip(self._library.steps, map(float, seconds), strict=True)


def _measured(operators: list[Any], target: Any) -> dict[str, float]:
    """What a session would measure for each operator's default program."""
    from slipstream.graph.forms import schedule_untuned
    from slipstream.graph.operators import weights_read
    from slipstream.measure import Candidate, MeasureConfig, cpu_measurer, reference_text

    programs = [Candidate(o.key, reference_text(schedule_untuned(o.func, target)), o.name) for o in operators]
    config = MeasureConfig(model_weights=weights_read(operators))
    with cpu_measurer(target, {o.key: reference_text(o.func) for o in operators}, config) as measurer:
        return {m.program.operator: m.median for m in measurer.measure(programs) if m.failure is None}


def markdown(data: Mapping[str, Any]) -> str:
    columns = ["model", "whole model, ms", "steps in it, ms", "operators as measured, ms", "whole / operators"]
    columns += ["steps / operators", "differences of single steps, share of all"]
    rows = []
    for model, result in data.items():
        whole, inside, alone = result["whole"], *(sum(row[i] for row in result["steps"]) for i in (1, 2))
        apart = sum(abs(row[1] - row[2]) for row in result["steps"]) / inside
        cells = [f"{1e3 * whole:.3f}", f"{1e3 * inside:.3f}", f"{1e3 * alone:.3f}", f"{whole / alone:.2f}"]
        rows.append([model, *cells, f"{inside / alone:.2f}", f"{100 * apart:.0f} %"])
    lines = table(columns, rows)
    furthest = [
        [model, name, f"{1e6 * inside:.0f}", f"{1e6 * alone:.0f}", f"{inside / alone:.2f}"]
        for model, result in data.items()
        for name, inside, alone in sorted(result["steps"], key=lambda row: -abs(row[1] - row[2]))[:_MOST_ROWS]
    ]
    lines += ["", "The steps that differ most:", ""]
    lines += table(["model", "step", "in the model, µs", "as measured, µs", "ratio"], furthest)
    return "\n".join(lines) + "\n"


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{model}: whole over operators": f"{result['whole'] / sum(row[2] for row in result['steps']):.2f}"
        for model, result in data.items()
    }


if __name__ == "__main__":
    run(__name__)
