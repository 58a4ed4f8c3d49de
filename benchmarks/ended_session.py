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

from benchmarks.lanes import pinned
from slipstream.errors import SlipstreamError
from slipstream.program.space import Program
from slipstream.session.directory import SESSION, SessionDirectory, open_store
from slipstream.session.history import Trial
from slipstream.session.state_names import WINNERS
from slipstream.session.stored_history import StoredHistory
from slipstream.session.stored_programs import StoredPrograms
from slipstream.store import ProgramRecord

_PRELUDE = """
import json, sys
from slipstream.tvm_bridge.imports import import_tvm_without_torch
import_tvm_without_torch()
from slipstream.session.tune import resume, tune
"""
_TUNE = f"{_PRELUDE}tune(json.loads(sys.argv[1]), sys.argv[2], **json.loads(sys.argv[3]))"
_RESUME = f"{_PRELUDE}resume(sys.argv[1])"


def tune_apart(model: str | list[str], directory: Path, *, cores: Sequence[int] = (), **options: Any) -> EndedSession:
    """Tune a model, or several together, in a process of its own, as a user would, on those `cores` if any are named.

    A finished session is not repeated, and an interrupted one is resumed. Without the package's priors, which were made
    of the same models, unless `priors` are named.
    """
    begun = (directory / SESSION).exists()
    if not begun or EndedSession(directory).record.status != "finished":
        if begun:
            command = [_RESUME, str(directory)]
        else:
            shutil.rmtree(directory, ignore_errors=True)
            command = [_TUNE, json.dumps(model), str(directory), json.dumps({"priors": None, **options})]
        if subprocess.run([*pinned(cores), sys.executable, "-c", *command], check=False).returncode:
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
            records, programs = list(store.trials(session=session)), StoredPrograms(store)
            self._programs = {(t.slot, t.position): programs.get(t.operator, t.program) for t in records}
            self._noisy = sum(trial.noisy for trial in records if math.isfinite(trial.median))
            winners = {key: ProgramRecord(*chosen) for key, chosen in stored.saved.get(WINNERS, {}).items()}
            self.winners = {key: programs.get(key, record) for key, record in winners.items()}
            """The program of each operator in the compiled model."""

    @property
    def trials(self) -> list[Trial]:
        """Those that ran, in the order of the slots."""
        return [t for slot in self.history.slots.values() for t in slot.trials if math.isfinite(t.seconds)]

    @property
    def seconds(self) -> float:
        """From the start of the command to the verified model."""
        return self.record.elapsed

    @property
    def finishing(self) -> float:
        """Seconds between the last slot and the verified model."""
        return self.record.elapsed - max((slot.ended or 0.0 for slot in self.history.slots.values()), default=0.0)

    def best(self) -> dict[str, Trial]:
        """Each operator's best trial in the slots that have ended."""
        known = [t for t in self.trials if self.history.slots[t.slot].ended is not None]
        return {t.operator: t for t in sorted(known, key=lambda t: t.seconds, reverse=True)}

    def program(self, trial: Trial) -> Program | None:
        return self._programs[trial.slot, trial.position]

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
            "noisy": self._noisy,
            "split": {part: round(value, 3) for part, value in self.record.result["split"].items()},
            "end_to_end": self.record.result["end_to_end"],
            "curve": list(self.curve()),
        }
