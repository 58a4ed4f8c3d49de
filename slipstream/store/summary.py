"""A store at a glance."""

from __future__ import annotations

import json
from typing import Any

from slipstream.store.store import Store


def summarise(store: Store) -> dict[str, Any]:
    """Counts of what a store holds; `failures` are trials by kind of failure, `bytes` the size of the database."""
    rows = store.database.rows
    columns = ("digest", "descriptor", "operators", "trials")
    hardware = rows(
        "SELECT digest, descriptor, count(DISTINCT operator), count(trial.id) FROM hardware "
        "LEFT JOIN trial ON trial.hardware = hardware.id GROUP BY hardware.id ORDER BY hardware.id"
    )
    failures = rows("SELECT failure, count(*) FROM trial WHERE failure IS NOT NULL GROUP BY failure ORDER BY 2 DESC, 1")
    return {
        "models": [name for (name,) in rows("SELECT name FROM model ORDER BY id")],
        "sessions": dict(rows("SELECT status, count(*) FROM session GROUP BY status ORDER BY status")),
        **{f"{table}s": rows(f"SELECT count(*) FROM {table}")[0][0] for table in ("operator", "program", "trial")},
        "failures": dict(failures),
        "hardware": [dict(zip(columns, (d, json.loads(text), *counts), strict=True)) for d, text, *counts in hardware],
        "bytes": store.database.bytes,
    }
