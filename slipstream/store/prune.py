"""Making a store smaller: of the trials that belong to no session only the best programs' stay.

Status and report of a session read all of its trials, and so does resuming it: none of them goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.store.store import Store

# The fastest trial of each program, ranked among those of its operator and hardware. SQLite takes the other
# columns beside a min() from the row where the minimum is.
_GOING = """
CREATE TEMP TABLE going AS
SELECT id FROM trial
WHERE session IS NULL
    AND id NOT IN (
        SELECT id FROM (
            SELECT id, row_number() OVER (PARTITION BY hardware, operator ORDER BY median, id) AS place
            FROM (SELECT id, hardware, operator, min(median) AS median FROM trial
                  WHERE median >= 0 GROUP BY hardware, operator, program)
        ) WHERE place <= ?
    )
"""


@dataclass(frozen=True)
class Pruned:
    """How many trials go, how many stay, and the size of the file before and after (the same in a dry run)."""

    going: int
    staying: int
    bytes_before: int
    bytes_after: int


def prune(store: Store, keep: int, *, dry_run: bool) -> Pruned:
    """Keep the best `keep` programs of each operator on each hardware, and all trials of sessions."""
    db = store.database
    before = db.bytes
    db.execute("DROP TABLE IF EXISTS temp.going")
    db.execute(_GOING, (keep,))
    (going,) = db.rows("SELECT count(*) FROM going")[0]
    (total,) = db.rows("SELECT count(*) FROM trial")[0]
    if not dry_run:
        with db.transaction():
            db.execute("DELETE FROM trial WHERE id IN (SELECT id FROM going)")
            db.execute(
                "DELETE FROM program WHERE id NOT IN (SELECT program FROM trial) "
                "AND id NOT IN (SELECT program FROM slot_program)"
            )
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Pruned(going, total - going, before, db.bytes)
