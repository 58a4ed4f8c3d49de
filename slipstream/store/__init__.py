"""What a tuner learns, kept in one SQLite file."""

from slipstream.store.errors import (
    SessionBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreVersionError,
)
from slipstream.store.records import OperatorRecord, ProgramRecord, SessionRecord, SlotRecord, TrialRecord
from slipstream.store.store import Store

__all__ = [
    "OperatorRecord",
    "ProgramRecord",
    "SessionBusyError",
    "SessionRecord",
    "SlotRecord",
    "Store",
    "StoreDamagedError",
    "StoreError",
    "StoreFullError",
    "StoreLockedError",
    "StoreReadOnlyError",
    "StoreVersionError",
    "TrialRecord",
]
