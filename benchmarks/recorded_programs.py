"""What sessions have measured of a model's programs, and predictions for programs that none has measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from slipstream.errors import SlipstreamError

# operator -> sketch -> [decisions as JSON, seconds]
Recorded = Mapping[str, Mapping[str, Sequence[tuple[str, float]]]]

_FASTER = 0.9  # than the fastest that is recorded: no prediction is below
_LEAST_SHARE = 0.8  # of a model's operators
_FEWEST = 12  # programs of a sketch to fit trees to


def record(folder: Path) -> dict[str, Recorded]:
    """Every program that ran in a session below `folder`: by model, operator and sketch; medians of repeated ones."""
    from slipstream.session.directory import SESSION, SessionDirectory, open_store

    found: dict[tuple[str, str, str, str], list[float]] = {}
    for path in sorted(folder.rglob(SESSION)):
        directory = SessionDirectory.read(path.parent)
        with open_store(directory, read_only=True) as store:
            source = store.session(directory.session).options["source"]
            for trial in store.trials(session=directory.session):
                if source.startswith("zoo:") and math.isfinite(trial.median):
                    key = (source.removeprefix("zoo:"), trial.operator, trial.program.sketch, trial.program.decisions)
                    found.setdefault(key, []).append(trial.median)
    if not found:
        raise SlipstreamError(f"{folder} has no session of a zoo model: name the work folder of benchmarks.ablation")
    recorded: dict[str, Any] = {}
    for (model, operator, sketch, decisions), seconds in found.items():
        programs = recorded.setdefault(model, {}).setdefault(operator, {}).setdefault(sketch, [])
        programs.append((decisions, float(f"{median(seconds):.4g}")))
    return recorded


class Recording:
    """The recorded operators of a model, their spaces, and how long any program of them takes.

    Operators that are made differently since the recording (of convnets the first convolution) are not in it.
    """

    def __init__(self, model: str, recorded: Recorded) -> None:
        from benchmarks.candidates import operators_of
        from slipstream.machine.target import resolve_target
        from slipstream.program.decisions import from_json
        from slipstream.program.space import StockSpace

        self.target = resolve_target()
        there_are = operators_of(model, self.target)
        self.operators = [one for one in there_are if one.key in recorded]
        if len(self.operators) < _LEAST_SHARE * len(there_are):
            lacking = next(one.name for one in there_are if one.key not in recorded)
            raise SlipstreamError(
                f"the recording lacks {lacking} of {model} and more: make it anew with --record FOLDER"
            )
        self.spaces = {one.key: StockSpace(one.key, one.func, self.target) for one in self.operators}
        self._known = {
            (key, sketch): {from_json(decisions): seconds for decisions, seconds in programs}
            for key in self.spaces
            for sketch, programs in recorded[key].items()
        }
        self._all = {key: [s for programs in recorded[key].values() for _, s in programs] for key in self.spaces}
        self._trees: dict[tuple[str, str], Any] = {}
        self._accuracies: list[float] = []
        for key, space in self.spaces.items():
            for example in space.sketches:
                if len(known := self._known.get((key, example.sketch.digest), {})) >= _FEWEST:
                    inputs, logs = _inputs(space, example, list(known)), [math.log(s) for s in known.values()]
                    self._trees[key, example.sketch.digest] = _fit(inputs, logs)
                    self._accuracies.append(_rank_correlation(inputs, logs))

    @property
    def accuracy(self) -> float:
        """Rank correlation of predictions for a fifth of the programs with what was measured, mean over sketches; not a
        number if no sketch has enough programs.
        """
        return mean(self._accuracies or [math.nan])

    @property
    def floor(self) -> float:
        """Latency with the fastest recorded programs."""
        return sum(one.weight * min(self._all[one.key]) for one in self.operators)

    def seconds(self, key: str, program: Any) -> float:
        import xgboost

        sketch, space = program.sketch.digest, self.spaces[key]
        known = self._known.get((key, sketch), {})
        if program.decisions in known:
            return known[program.decisions]
        if (trees := self._trees.get((key, sketch))) is None:
            return median(known.values() if known else self._all[key])
        inputs = xgboost.DMatrix(_inputs(space, program, [program.decisions]), nthread=1)
        return max(_FASTER * min(self._all[key]), math.exp(float(trees.predict(inputs)[0])))


def _inputs(space: Any, example: Any, decisions: Sequence[Any]) -> Any:
    from slipstream.diffusion.guess import describe

    return describe(space.points(example), decisions)


def _fit(inputs: Any, logs: Sequence[float]) -> Any:
    import xgboost

    how = {"max_depth": 6, "eta": 0.1, "subsample": 0.8, "colsample_bytree": 0.8, "tree_method": "hist", "nthread": 1}
    return xgboost.train(how, xgboost.DMatrix(inputs, label=logs, nthread=1), num_boost_round=150)


def _rank_correlation(inputs: Any, logs: Sequence[float]) -> float:
    import numpy as np
    import xgboost
    from scipy.stats import spearmanr

    tested = np.arange(len(logs)) % 5 == 0
    trees = _fit(inputs[~tested], np.asarray(logs)[~tested])
    found = spearmanr(trees.predict(xgboost.DMatrix(inputs[tested], nthread=1)), np.asarray(logs)[tested])[0]
    return float(found) if math.isfinite(found) else 0.0
