"""Trials: appended once, never changed, found by operator and hardware together."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from slipstream.program.examples import examples_of
from slipstream.store.catalogue import id_of, program_digest, program_ids
from slipstream.store.database import Database
from slipstream.store.records import ProgramRecord, TrialRecord

_PAGE = 500

_INSERT = """
INSERT INTO trial (
    operator, hardware, program, origin, median, samples, failure, message, stopped_early, noisy, verified, duplicate,
    build_seconds, run_seconds, overhead_seconds, measured_at, session, slot, position
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

_SELECT = """
SELECT operator.key, hardware.digest, sketch.digest, program.decisions, trial.origin, trial.samples, trial.failure,
    trial.message, trial.stopped_early, trial.noisy, trial.verified, trial.duplicate, trial.build_seconds,
    trial.run_seconds, trial.overhead_seconds, trial.measured_at, session.name, trial.slot, trial.position, trial.id
FROM trial
JOIN program ON program.id = trial.program
JOIN sketch ON sketch.id = program.sketch
JOIN operator ON operator.id = trial.operator
JOIN hardware ON hardware.id = trial.hardware
LEFT JOIN session ON session.id = trial.session
"""

# In the order of the index `trial_best`; `>= 0` steps over the failures, which are NULL.
RANKED = """
SELECT id, program FROM trial
WHERE hardware = (SELECT id FROM hardware WHERE digest = ?)
    AND operator = (SELECT id FROM operator WHERE key = ?) AND median >= 0
ORDER BY median, id
"""


# The same with the failures, last.
_RANKED_WITH_FAILURES = """
SELECT id, program FROM trial
WHERE hardware = (SELECT id FROM hardware WHERE digest = ?)
    AND operator = (SELECT id FROM operator WHERE key = ?)
ORDER BY median IS NULL, median, id
"""


class Trials:
    """The part of a store that holds trials."""

    _db: Database

    def append_trial(self, trial: TrialRecord) -> int:
        """Its id, once it is on the disk."""
        with self._db.transaction():
            return self._db.insert(_INSERT, *_rows(self._db, [trial]))

    def append_trials(self, records: Iterable[TrialRecord]) -> None:
        """All of them or, if one is refused, none."""
        left = iter(records)
        with self._db.transaction():
            while part := list(islice(left, _PAGE)):
                self._db.execute_many(_INSERT, _rows(self._db, part))

    def best(self, operator: str, hardware: str) -> TrialRecord | None:
        return next(iter(self.top(operator, hardware, 1)), None)

    def top(self, operator: str, hardware: str, count: int) -> list[TrialRecord]:
        """The fastest trials of `count` different programs on that very hardware, fastest first."""
        limit = 2 * count
        while True:
            ranked = self._db.rows(f"{RANKED} LIMIT ?", (hardware, operator, limit))
            fastest: dict[int, int] = {}
            for trial, program in ranked:
                fastest.setdefault(program, trial)
            if len(fastest) >= count or len(ranked) < limit:
                break
            limit *= 4  # some programs were measured often
        return self._in_order([*fastest.values()][:count])

    def examples(self, operator: str, hardware: str, count: int) -> list[TrialRecord]:
        """The trials of `count` different programs to learn from, fastest first: half of them the fastest, the others
        from there down to the slowest and the failed.
        """
        fastest: dict[int, int] = {}
        for trial, program in self._db.rows(_RANKED_WITH_FAILURES, (hardware, operator)):
            fastest.setdefault(program, trial)
        return self._in_order(examples_of([*fastest.values()], count))

    def _in_order(self, chosen: list[int]) -> list[TrialRecord]:
        records = {record.id: record for record in _fetch(self._db, chosen)}
        return [records[trial] for trial in chosen]

    def trials(
        self, *, operator: str | None = None, hardware: str | None = None, session: str | None = None
    ) -> Iterator[TrialRecord]:
        """Those that are there now, in order of id. Between pages no lock is held and no snapshot kept."""
        filters = {
            "hardware = (SELECT id FROM hardware WHERE digest = ?)": hardware,
            "operator = (SELECT id FROM operator WHERE key = ?)": operator,
            "session = (SELECT id FROM session WHERE name = ?)": session,
        }
        used = {condition: value for condition, value in filters.items() if value is not None}
        where = f"WHERE {' AND '.join(used)}" if used else ""
        ids = array(
            "q", (row[0] for row in self._db.stream(f"SELECT id FROM trial {where} ORDER BY id", [*used.values()]))
        )
        for start in range(0, len(ids), _PAGE):
            yield from _fetch(self._db, ids[start : start + _PAGE].tolist())

    def counts(self, hardware: str) -> dict[str, tuple[int, int]]:
        """Operator key -> how many trials it has had on that hardware, and how many of these failed."""
        found = self._db.rows(
            "SELECT operator, count(*), count(*) - count(median) FROM trial "
            "WHERE hardware = (SELECT id FROM hardware WHERE digest = ?) GROUP BY operator",
            (hardware,),
        )
        keys = dict(self._db.rows("SELECT id, key FROM operator"))
        return {keys[operator]: (trials, failures) for operator, trials, failures in found}

    def is_known(self, trial: TrialRecord) -> bool:
        """Whether this very trial is here: the same program, hardware, moment and result."""
        row = self._db.row(
            "SELECT 1 FROM trial WHERE program = (SELECT id FROM program WHERE digest = ?) "
            "AND hardware = (SELECT id FROM hardware WHERE digest = ?) "
            "AND measured_at = ? AND samples = ? AND failure IS ?",
            (
                program_digest(trial.operator, trial.program.sketch, trial.program.decisions),
                trial.hardware,
                trial.measured_at,
                pack_samples(trial.samples),
                trial.failure,
            ),
        )
        return row is not None


def _rows(db: Database, trials: list[TrialRecord]) -> list[tuple[Any, ...]]:
    """The columns of `_INSERT`; programs that are new are added."""
    numbers = program_ids(db, [(trial.operator, trial.program) for trial in trials])
    return [_row(db, trial, number) for trial, number in zip(trials, numbers, strict=True)]


def _row(db: Database, trial: TrialRecord, program: int) -> tuple[Any, ...]:
    median = trial.median
    return (
        id_of(db, "operator", trial.operator),
        id_of(db, "hardware", trial.hardware),
        program,
        trial.program.origin,
        median if math.isfinite(median) else None,
        pack_samples(trial.samples),
        trial.failure,
        _storable(trial.message),
        trial.stopped_early,
        trial.noisy,
        trial.verified,
        trial.duplicate,
        trial.build_seconds,
        trial.run_seconds,
        trial.overhead_seconds,
        trial.measured_at,
        None if trial.session is None else id_of(db, "session", trial.session),
        trial.slot,
        trial.position,
    )


def _storable(message: str) -> str:
    """A compiler's output may hold anything; a byte that is not text must not make a trial unstorable."""
    return message.encode(errors="replace").decode()


def _fetch(db: Database, ids: list[int]) -> list[TrialRecord]:
    if not ids:
        return []
    places = ", ".join("?" * len(ids))
    return [_record(row) for row in db.rows(f"{_SELECT} WHERE trial.id IN ({places}) ORDER BY trial.id", ids)]


def _record(row: tuple[Any, ...]) -> TrialRecord:
    operator, hardware, sketch, decisions, origin, samples, failure, message, early, noisy, verified, same, *rest = row
    build, run, overhead, measured_at, session, slot, position, number = rest
    return TrialRecord(
        operator=operator,
        hardware=hardware,
        program=ProgramRecord(sketch, decisions, origin),
        samples=unpack_samples(samples),
        failure=failure,
        message=message,
        stopped_early=bool(early),
        noisy=bool(noisy),
        verified=bool(verified),
        duplicate=bool(same),
        build_seconds=build,
        run_seconds=run,
        overhead_seconds=overhead,
        measured_at=measured_at,
        session=session,
        slot=slot,
        position=position,
        id=number,
    )


def pack_samples(samples: tuple[float, ...]) -> bytes:
    """Eight bytes each, little-endian: a median read back is the median that was stored."""
    return struct.pack(f"<{len(samples)}d", *samples)


def unpack_samples(blob: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(blob) // 8}d", blob)
