"""Recorded tuning curves as files: what each operator of a model gained, trial by trial.

A curve keeps only the trials at which the best program changed, and the last. Time counts searching, building and
running for this operator alone, and starts at 0 with the default program, which every policy has measured first.
"""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import SlipstreamError
from slipstream.schedulers.replay import RecordedCurve

CURVES = Path(__file__).parent / "curves"
GPU_CURVES = CURVES / "gpu"  # read_all of the folder above does not look into it
_FORMAT = 1


class RecordingError(SlipstreamError):
    """A recording that is not there or cannot be read."""


@dataclass(frozen=True)
class OperatorCurve:
    """`trial`, `seconds` and `best` have one entry for each point; `best` is seconds per call, None if none ran yet."""

    key: str
    name: str
    weight: int
    flops: int
    similar: tuple[str, ...]
    trial: tuple[int, ...]
    seconds: tuple[float, ...]
    best: tuple[float | None, ...]


@dataclass(frozen=True)
class Recording:
    """All operators of a model, tuned separately. `about` has machine, date, load and settings."""

    model: str
    seed: int
    peak_flops: float
    about: dict[str, Any]
    operators: tuple[OperatorCurve, ...]

    @property
    def name(self) -> str:
        return f"{self.model}-{self.seed}"

    def replayable(self) -> list[RecordedCurve]:
        """The curves of all operators that ran at least once; the others have no part in the model's latency."""
        return [
            RecordedCurve.from_points(
                o.key,
                o.weight,
                o.flops,
                o.trial,
                o.seconds,
                [math.nan if b is None else b for b in o.best],
                o.similar,
            )
            for o in self.operators
            if o.best and o.best[-1] is not None
        ]

    def write(self, folder: Path) -> Path:
        """Write `MODEL-SEED.json.gz`; the same recording gives the same bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json.gz"
        text = json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":"), ensure_ascii=False)
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(gzip.compress(text.encode(), mtime=0))
        unfinished.replace(path)
        return path

    @classmethod
    def read(cls, path: Path) -> Recording:
        try:
            content = json.loads(gzip.decompress(path.read_bytes()))
            if content.pop("format") != _FORMAT:
                raise RecordingError(f"{path} has another format: record it again")
            rows: list[dict[str, Any]] = [
                {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
                for row in content.pop("operators")
            ]
            return cls(**content, operators=tuple(OperatorCurve(**row) for row in rows))
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordingError(f"{path} is no recording ({error}): record it again") from error


def read_all(folder: Path = CURVES) -> list[Recording]:
    """Every recording of a folder, by name."""
    paths = sorted(folder.glob("*.json.gz"))
    if not paths:
        raise RecordingError(
            f"there are no curves in {folder}: record some with 'python -m benchmarks.dynatune.record'"
        )
    return [Recording.read(path) for path in paths]
