"""Measuring without hardware: answers come from recorded measurements, time passes on a simulated clock.

For studying schedulers and searches: the same recording gives every policy the same hardware, and an hour of
tuning takes as long as reading the file. Nothing is built or run here, and nothing here needs TVM.

A recording is a text file of JSON lines, gzipped if its name ends in `.gz`. The first line is
`{"format": "slipstream-recording", "version": 1}`. Each further line is one measurement: `operator`, `program`
(SHA-256 of the module's text, which itself is not kept), `label`, and the other fields of `Measurement` under
their own names; `failure` is null or an object of `kind`, `message` and `stderr`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from slipstream.errors import SlipstreamError
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement

_HEADER = {"format": "slipstream-recording", "version": 1}
_MEASURED = tuple(field.name for field in fields(Measurement) if field.name != "program")


class RecordingError(SlipstreamError):
    """A recording is missing, damaged or of another version, or does not know a program it was asked for."""


class SimulatedClock:
    """Seconds that pass only when told to."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Seconds since the clock's own beginning."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass; time never goes back."""
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ValueError(f"a clock advances by a finite number of seconds from 0 up, not {seconds}")
        self._now += seconds


def program_digest(program: Candidate) -> str:
    """A program's identity in a recording: SHA-256 of its module's text."""
    return hashlib.sha256(program.module.encode()).hexdigest()


def record(path: str | os.PathLike[str], measurements: Iterable[Measurement]) -> int:
    """Write `measurements` to `path` and return how many they were. The file appears when it is complete."""
    target = Path(path)
    unfinished = target.with_name(f".{os.getpid()}-{target.name}")
    count = 0
    try:
        with _open(unfinished, "wt") as file:
            file.write(json.dumps(_HEADER) + "\n")
            for measurement in measurements:
                file.write(json.dumps(_to_json(measurement), allow_nan=False) + "\n")
                count += 1
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


@dataclass(frozen=True)
class Recording:
    """Measurements by (operator, program digest), in the order recorded. Their programs have no module."""

    trials: Mapping[tuple[str, str], tuple[Measurement, ...]]
    source: str = "memory"

    @classmethod
    def of(cls, measurements: Iterable[Measurement]) -> Recording:
        """A recording that was never on disk."""
        return cls(_group((program_digest(m.program), m) for m in measurements))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read what `record` wrote; raises `RecordingError` naming the line that cannot be read."""
        try:
            with _open(Path(path), "rt") as file:
                return cls(_group(_read(file, str(path))), str(path))
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise RecordingError(f"cannot read the recording {path}: {error}") from error

    def __len__(self) -> int:
        return sum(len(trials) for trials in self.trials.values())


class ReplayMeasurer:
    """A `Measurer` that replays a recording: results are those of the past, time is `clock`'s.

    A program takes the time its trial took when it was recorded, plus `overhead_seconds`. One recorded several times is
    answered with each of them in turn. With `resample`, samples are drawn from the recorded ones with
    replacement, to see how a policy takes noise. A program that was never recorded is an error, or with
    `unknown="fail"` a `DEVICE_LOST` failure that takes the overhead only.
    """

    def __init__(
        self,
        recording: Recording,
        clock: SimulatedClock,
        *,
        overhead_seconds: float = 0.0,
        resample: np.random.Generator | None = None,
        unknown: Literal["error", "fail"] = "error",
    ) -> None:
        if unknown not in ("error", "fail"):
            raise ValueError(f"unknown must be 'error' or 'fail', not {unknown!r}")
        self.recording = recording
        self.clock = clock
        self._overhead = overhead_seconds
        self._resample = resample
        self._unknown = unknown
        self._asked: Counter[tuple[str, str]] = Counter()

    def measure(self, programs: Iterable[Candidate]) -> Iterator[Measurement]:
        """One recorded measurement for each program, in the order asked."""
        for program in programs:
            yield self._answer(program)

    def close(self) -> None:
        """Nothing to release."""

    def __repr__(self) -> str:
        return f"<replay of {len(self.recording)} recorded measurements from {self.recording.source}: no hardware>"

    def _answer(self, program: Candidate) -> Measurement:
        key = (program.operator, program_digest(program))
        trials = self.recording.trials.get(key)
        started_at = self.clock.now()
        self.clock.advance(self._overhead)
        if not trials:
            return self._answer_unknown(program, started_at)
        trial = trials[self._asked[key] % len(trials)]
        self._asked[key] += 1
        self.clock.advance(_seconds(trial))
        return replace(trial, program=program, samples=self._samples(trial), started_at=started_at)

    def _answer_unknown(self, program: Candidate, started_at: float) -> Measurement:
        message = (
            f"this is a replay and {self.recording.source} has no measurement of program "
            f"{program_digest(program)[:12]} {program.label!r} of operator {program.operator!r}"
        )
        if self._unknown == "error":
            raise RecordingError(f"{message}: record it first, or choose unknown='fail'")
        return Measurement(program, failure=Failure(FailureKind.DEVICE_LOST, message), started_at=started_at)

    def _samples(self, trial: Measurement) -> tuple[float, ...]:
        if self._resample is None or not trial.samples:
            return trial.samples
        return tuple(float(s) for s in self._resample.choice(trial.samples, size=len(trial.samples)))


def _seconds(trial: Measurement) -> float:
    return trial.build_seconds + trial.allocate_seconds + trial.run_seconds + trial.overhead_seconds


def _open(path: Path, mode: Literal["rt", "wt"]) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, mode, encoding="utf-8")
    return path.open(mode, encoding="utf-8")


def _to_json(measurement: Measurement) -> dict[str, Any]:
    program = measurement.program
    identity = {"operator": program.operator, "program": program_digest(program), "label": program.label}
    values = asdict(measurement)
    return identity | {name: values[name] for name in _MEASURED}


def _read(file: IO[str], source: str) -> Iterator[tuple[str, Measurement]]:
    try:
        header = json.loads(file.readline())
    except ValueError:
        header = None
    if header != _HEADER:
        raise RecordingError(f"{source} is not a recording of version {_HEADER['version']}: its first line is foreign")
    for number, line in enumerate(file, start=2):
        try:
            yield _from_json(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingError(f"{source}, line {number} is damaged: {error!r}") from error


def _from_json(values: dict[str, Any]) -> tuple[str, Measurement]:
    program = Candidate(str(values["operator"]), module="", label=str(values["label"]))
    measured = {name: values[name] for name in _MEASURED if name in values}
    measured["samples"] = tuple(float(sample) for sample in values["samples"])
    if failure := values["failure"]:
        measured["failure"] = Failure(FailureKind(failure["kind"]), failure["message"], failure["stderr"])
    measurement = Measurement(program, **measured)
    if not 0 <= _seconds(measurement) < math.inf:
        raise ValueError(f"a trial cannot take {_seconds(measurement)} seconds")
    return str(values["program"]), measurement


def _group(trials: Iterable[tuple[str, Measurement]]) -> dict[tuple[str, str], tuple[Measurement, ...]]:
    grouped: dict[tuple[str, str], list[Measurement]] = {}
    for digest, measurement in trials:
        grouped.setdefault((measurement.program.operator, digest), []).append(measurement)
    return {key: tuple(values) for key, values in grouped.items()}
