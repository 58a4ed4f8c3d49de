"""A finished tuning session, read from its store: best programs and latency at any time."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slipstream.errors import SlipstreamError
from slipstream.program.decisions import from_json
from slipstream.program.sketch import Sketch
from slipstream.program.space import Program
from slipstream.session.directory import MODEL, SESSION, SessionDirectory, open_store
from slipstream.session.state_names import WINNERS
from slipstream.session.stored_history import StoredHistory
from slipstream.store import TrialRecord

_PRELUDE = """
import json, sys
from slipstream.tvm_bridge.imports import import_tvm_without_torch
import_tvm_without_torch()
from slipstream.session.tune import resume, tune
"""
_TUNE = f"{_PRELUDE}tune(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))"
_RESUME = f"{_PRELUDE}resume(sys.argv[1])"


def tune_apart(model: str, directory: Path, *, cores: Sequence[int] = (), **options: Any) -> EndedSession:
    """Tune in a process of its own, as a user would, on those `cores` if any are named.

    A finished session is not repeated, and an interrupted one is resumed.
    """
    if not (directory / MODEL).is_dir():
        if (directory / SESSION).exists():
            command = [_RESUME, str(directory)]
        else:
            shutil.rmtree(directory, ignore_errors=True)
            command = [_TUNE, model, str(directory), json.dumps(options)]
        pinned = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        if subprocess.run([*pinned, sys.executable, "-c", *command], check=False).returncode:
            raise SlipstreamError(f"tuning {model} in {directory} failed; see the error above")
    return EndedSession(directory)


class EndedSession:
    def __init__(self, directory: Path) -> None:
        self.directory = SessionDirectory.read(directory)
        session = self.directory.session
        with open_store(self.directory, read_only=True) as store:
            self.record = store.session(session)
            stored = StoredHistory.of(store, session)
            self.history = stored.history
            self._winners = stored.saved.get(WINNERS, {})
            self.weights = {key: operator.weight for key, operator in self.history.operators.items()}
            self.ended = {n: slot.ended for n, slot in self.history.slots.items() if slot.ended is not None}
            self.trials = [t for t in store.trials(session=session) if math.isfinite(t.median)]
            self._sketches = {t.program.sketch: store.sketch(t.program.sketch) for t in self.trials}

    @property
    def seconds(self) -> float:
        """From the start of the command to the verified model."""
        return self.record.elapsed

    @property
    def finishing(self) -> float:
        """Seconds between the last slot and the verified model."""
        return self.record.elapsed - max(self.ended.values(), default=0.0)

    def best(self, seconds: float = math.inf, *, defaults: bool = True) -> dict[str, TrialRecord]:
        """Each operator's best trial in the slots that had ended after `seconds`; without `defaults`, of a search's."""
        found: dict[str, TrialRecord] = {}
        for trial in self.trials:
            ended = self.ended.get(-1 if trial.slot is None else trial.slot, math.inf)
            if ended > seconds or (not defaults and trial.program.origin == "default"):
                continue
            if trial.operator not in found or trial.median < found[trial.operator].median:
                found[trial.operator] = trial
        return found

    def program(self, trial: TrialRecord) -> Program:
        text = self._sketches[trial.program.sketch]
        assert text is not None
        return Program(trial.operator, Sketch(text), from_json(trial.program.decisions))

    def winners(self) -> dict[str, Program]:
        """The program of each operator in the compiled model."""
        return {
            key: Program(key, Sketch(self._sketches[digest]), from_json(decisions))
            for key, (digest, decisions) in self._winners.items()
        }

    def latency(self, seconds: float = math.inf) -> float:
        """Sum of operators after `seconds`; infinite until all default programs were measured."""
        latency = math.inf
        for ended, history in self.history.by_slots():
            if ended <= seconds:
                latency = history.latency
        return latency

    def curve(self) -> Iterator[tuple[float, float, int]]:
        """(seconds, sum of operators, programs that ran) by slots, from when all default programs were measured."""
        for seconds, history in self.history.by_slots():
            if math.isfinite(history.latency):
                yield round(seconds, 2), history.latency, history.trials - history.failures.total()

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 2),
            "finishing": round(self.finishing, 2),
            "trials": len(self.trials),
            "noisy": sum(trial.noisy for trial in self.trials),
            "split": {part: round(value, 3) for part, value in self.record.result["split"].items()},
            "end_to_end": self.record.result["end_to_end"],
            "curve": list(self.curve()),
        }
