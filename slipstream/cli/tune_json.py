"""The JSON view of a tuning session, for other programs: one object a line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from slipstream.cli.line_output import LineOutput
from slipstream.cli.tune_quiet import QuietView
from slipstream.session.events import Event, Snapshot
from slipstream.session.shapes import latencies_now

_WITH_FIGURES = ("slot_done", "finished")


class JsonView(QuietView):
    """Prints every event, with the session's state under `snapshot` at the end of each slot and of the session."""

    def __init__(self, output: LineOutput) -> None:
        self._output = output

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        fields: dict[str, Any] = {**event.data, "event": event.kind, "elapsed": event.elapsed}
        if event.kind in _WITH_FIGURES:
            fields["snapshot"] = _figures(snapshot)
        first = ("event", "elapsed")
        ordered = {name: fields[name] for name in (*first, *(name for name in fields if name not in first))}
        self._output.write(json.dumps(finite(ordered), ensure_ascii=False, allow_nan=False, default=str))


def _figures(snapshot: Snapshot) -> dict[str, Any]:
    remaining = snapshot.remaining
    return {
        "session": snapshot.session,
        "model": snapshot.model,
        "target": snapshot.target,
        "phase": snapshot.phase,
        "start_latency": snapshot.start_latency,
        "latency": snapshot.latency,
        "shapes": [asdict(row) for row in latencies_now(snapshot)],
        "slots": snapshot.slots,
        "trials": snapshot.trials,
        "default_trials": snapshot.default_trials,
        "operators": len(snapshot.operators),
        "operators_finished": sum(row.finished for row in snapshot.operators),
        "failures": dict(snapshot.failures),
        "seconds_left": remaining.seconds,
        "trials_left": remaining.trials,
        "left": snapshot.left and {**asdict(snapshot.left), "text": str(snapshot.left)},
        "split": dict(snapshot.split),
    }


def finite(value: Any) -> Any:
    """`value` with null where JSON has no number for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
