"""Making a store smaller: of the trials that belong to no session only the best programs' stay.

Status and report of a session read all of its trials, and so does resuming it: none of them goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.store.store import Store

# The fastest trial of each program stays if it is among the first of its operator on its hardware.
_GOING = """
FROM trial WHERE session IS NULL AND id NOT IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY hardware, operator ORDER BY median, id) AS place FROM (
            SELECT id, hardware, operator, median,
                row_number() OVER (PARTITION BY hardware, operator, program ORDER BY median, id) AS attempt
            FROM trial WHERE median >= 0
        ) AS measured WHERE attempt = 1
    ) AS ranked WHERE place <= ?
)
"""


@dataclass(frozen=True)
class Pruned:
    """How many trials go, how many stay, and the size before and after (the same in a dry run)."""

    going: int
    staying: int
    bytes_before: int
    bytes_after: int


def prune(store: Store, keep: int, *, dry_run: bool) -> Pruned:
    """Keep the best `keep` programs of each operator on each hardware, and all trials of sessions."""
    db = store.database
    before = db.bytes
    if dry_run:
        (going,) = db.rows(f"SELECT count(*) {_GOING}", (keep,))[0]
        (total,) = db.rows("SELECT count(*) FROM trial")[0]
        return Pruned(going, total - going, before, before)
    with db.transaction(alone=True):
        going = db.change(f"DELETE {_GOING}", (keep,))
        db.execute(
            "DELETE FROM program WHERE NOT EXISTS (SELECT 1 FROM trial WHERE trial.program = program.id) "
            "AND NOT EXISTS (SELECT 1 FROM slot_program WHERE slot_program.program = program.id)"
        )
    db.reclaim()
    (left,) = db.rows("SELECT count(*) FROM trial")[0]
    return Pruned(going, left, before, db.bytes)
