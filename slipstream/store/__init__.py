"""What a tuner learns, kept in one SQLite file or in a PostgreSQL database."""

from slipstream.store.errors import (
    SessionBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreUnreachableError,
    StoreVersionError,
)
from slipstream.store.location import PostgresUrl, StoreLocation, store_location
from slipstream.store.records import OperatorRecord, ProgramRecord, SessionRecord, SlotRecord, TrialRecord
from slipstream.store.store import Store

__all__ = [
    "OperatorRecord",
    "PostgresUrl",
    "ProgramRecord",
    "SessionBusyError",
    "SessionRecord",
    "SlotRecord",
    "Store",
    "StoreDamagedError",
    "StoreError",
    "StoreFullError",
    "StoreLocation",
    "StoreLockedError",
    "StoreReadOnlyError",
    "StoreUnreachableError",
    "StoreVersionError",
    "TrialRecord",
    "store_location",
]
