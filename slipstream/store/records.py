"""What goes into a store and comes out of it: plain data, programs and operators as text."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

from slipstream import statistics

_DIGEST_BYTES = 10


def canonical_json(value: Any) -> str:
    """The one JSON text of equal values: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(text: str) -> str:
    """Twenty hex digits that stand for `text`."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True)
class OperatorRecord:
    """An operator. `module` is its unscheduled TIR as TVM's JSON; `flops` and `bytes` are those of one call."""

    key: str
    name: str
    kinds: tuple[str, ...]
    flops: int
    bytes: int
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    module: str


@dataclass(frozen=True)
class ProgramRecord:
    """The digest of a sketch, the decisions as compact JSON, and who proposed them ("default", "evolutionary", ...).

    Sketch and decisions make the program; two proposers of the same one proposed the same program.
    """

    sketch: str
    decisions: str
    origin: str = ""


@dataclass(frozen=True)
class TrialRecord:
    """One program built and measured. `samples` are seconds per run; `hardware` is a digest of `Store.add_hardware`.

    `session`, `slot` and `position` say which proposal it answers; `id` is the store's and ignored when appending.
    """

    operator: str
    hardware: str
    program: ProgramRecord
    samples: tuple[float, ...] = ()
    failure: str | None = None
    message: str = ""
    stopped_early: bool = False
    noisy: bool = False
    verified: bool = False
    duplicate: bool = False
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    overhead_seconds: float = 0.0
    measured_at: float = 0.0
    session: str | None = None
    slot: int | None = None
    position: int | None = None
    id: int | None = None

    @property
    def median(self) -> float:
        """Seconds of a run; infinite for a failure, so that it never looks best."""
        if self.failure is not None or not self.samples:
            return math.inf
        return statistics.median(self.samples)


@dataclass(frozen=True)
class SlotRecord:
    """A slot and what was proposed in it, written before the first of these programs was measured."""

    slot: int
    operator: str
    programs: tuple[ProgramRecord, ...]
    search_seconds: float
    note: dict[str, Any]
    finished: bool
    stats: dict[str, Any]


@dataclass(frozen=True)
class SessionRecord:
    """A session; `model` is the model's fingerprint, `status` one of STATUSES, `elapsed` seconds of tuning."""

    id: str
    model: str
    model_name: str
    hardware: str
    options: dict[str, Any]
    created_at: float
    status: str
    elapsed: float
    result: dict[str, Any]


STATUSES = ("running", "interrupted", "finished")
