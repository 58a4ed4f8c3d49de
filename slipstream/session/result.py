"""What tuning has brought."""

from __future__ import annotations

import html
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from slipstream.session.events import Snapshot
from slipstream.session.shapes import ShapeLatency

INTERRUPTED = "interrupted"
DEVICES_AWAY = "the devices are away"
# The reasons of an end after which the session is to go on.
UNFINISHED = (INTERRUPTED, DEVICES_AWAY)


@dataclass(frozen=True)
class TunedOperator:
    """Seconds per call before and after; `trials` programs of it were measured."""

    name: str
    weight: int
    start: float
    best: float
    trials: int


@dataclass(frozen=True)
class TunedModel:
    """One of the models of a session: its artifact is in `directory`. Latencies are those of one run, of several
    `shapes` of one run of each; `weight` is how often it counts in the sums over all models."""

    name: str
    directory: Path
    weight: int
    start_latency: float
    latency: float
    end_to_end: float
    fallback: str
    shapes: tuple[ShapeLatency, ...]

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("directory", "shapes")}


@dataclass(frozen=True)
class TuningResult:
    """The compiled model is in `directory`/model: `slipstream.load(result.directory)` loads it. That of one of several
    models is in the `directory` of its entry in `models`.

    `start_latency` and `latency` are sums over operators; `end_to_end` is what the compiled model really takes.
    `reason` says why tuning ended. Of several shapes all these are sums over the shapes, and of several models sums
    over the models, each as often as its weight says; `shapes` has them one by one.
    """

    directory: Path
    model: str
    reason: str
    start_latency: float
    latency: float
    end_to_end: float
    elapsed: float
    trials: int
    failures: dict[str, int]
    operators: tuple[TunedOperator, ...]
    curve: tuple[tuple[float, float], ...] = field(repr=False)
    split: dict[str, float] = field(repr=False)
    snapshot: Snapshot = field(repr=False)
    shapes: tuple[ShapeLatency, ...] = ()
    models: tuple[TunedModel, ...] = ()

    def __str__(self) -> str:
        operators = "not all operators were timed" if self.operators else "no operator could be timed"
        if math.isfinite(self.latency):
            factor = self.start_latency / self.latency if self.latency else 1.0
            operators = f"operators {self.start_latency * 1e3:.3f} -> {self.latency * 1e3:.3f} ms ({factor:.2f}x)"
        end = f"after {self.trials} trials in {self.elapsed:.0f} s"
        fallback = f"; {self.fallback}" if self.fallback else ""
        return f"{self.model}: {self.end_to_end * 1e3:.3f} ms; {operators} {end}{fallback}"

    @property
    def whole_gain(self) -> float | None:
        """How many times as fast as untuned the compiled model is, called in turns; 1 if it has default
        programs alone. None where that was not measured: of several models, after a short session, and where the sum of
        operators leaves no doubt."""
        return self.snapshot.whole_gain

    @property
    def fallback(self) -> str:
        """Why the compiled model has the default programs; empty if it has the tuned ones."""
        return self.snapshot.fallback

    def _repr_html_(self) -> str:
        """A table for notebooks: the model first, then its operators, the longest first."""
        rows = sorted(self.operators, key=lambda o: -o.weight * o.best)
        cells = [(o.name, o.weight, o.start * 1e3, o.best * 1e3, o.start / o.best, o.trials) for o in rows]
        body = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{weight}</td><td>{start:.3f}</td><td>{best:.3f}</td>"
            f"<td>{gain:.2f}x</td><td>{trials}</td></tr>"
            for name, weight, start, best, gain, trials in cells
        )
        head = "".join(f"<th>{t}</th>" for t in ("operator", "calls", "before, ms", "after, ms", "gain", "trials"))
        each = "".join(
            f"<p>{html.escape(row.shape)}: {1e3 * (row.end_to_end or math.nan):.3f} ms; "
            f"operators {1e3 * row.start:.3f} -&gt; {1e3 * row.latency:.3f} ms</p>"
            for row in self.shapes
        )
        return f"<p><b>{html.escape(str(self))}</b></p>{each}<table><tr>{head}</tr>{body}</table>"

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "reason": self.reason,
            "start_latency": self.start_latency,
            "latency": self.latency,
            "end_to_end": self.end_to_end,
            "elapsed": self.elapsed,
            "trials": self.trials,
            "failures": self.failures,
            "split": self.split,
            "fallback": self.fallback,
            "whole_gain": self.whole_gain,
            "left": self.snapshot.left and asdict(self.snapshot.left),
            "shapes": [asdict(shape) for shape in self.shapes],
            "models": [model.to_json() for model in self.models],
            "operators": [asdict(operator) for operator in self.operators],
        }
