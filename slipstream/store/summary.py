"""A store at a glance."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from slipstream.store.store import Store


@dataclass(frozen=True)
class HardwareSummary:
    digest: str
    descriptor: dict[str, Any]
    operators: int
    trials: int


@dataclass(frozen=True)
class Summary:
    """Counts of what a store holds; `failures` are trials by kind of failure, `bytes` the size of the file."""

    models: list[str]
    sessions: dict[str, int]
    operators: int
    programs: int
    trials: int
    failures: dict[str, int]
    hardware: list[HardwareSummary]
    bytes: int


def summarise(store: Store) -> Summary:
    rows = store.database.rows
    hardware = rows(
        "SELECT digest, descriptor, count(DISTINCT operator), count(trial.id) FROM hardware "
        "LEFT JOIN trial ON trial.hardware = hardware.id GROUP BY hardware.id ORDER BY hardware.id"
    )
    failures = rows("SELECT failure, count(*) FROM trial WHERE failure IS NOT NULL GROUP BY failure ORDER BY 2 DESC, 1")
    return Summary(
        models=[name for (name,) in rows("SELECT name FROM model ORDER BY id")],
        sessions=dict(rows("SELECT status, count(*) FROM session GROUP BY status ORDER BY status")),
        operators=rows("SELECT count(*) FROM operator")[0][0],
        programs=rows("SELECT count(*) FROM program")[0][0],
        trials=rows("SELECT count(*) FROM trial")[0][0],
        failures=dict(failures),
        hardware=[
            HardwareSummary(digest, json.loads(text), operators, trials) for digest, text, operators, trials in hardware
        ],
        bytes=store.database.bytes,
    )
