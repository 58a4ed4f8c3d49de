"""The tables of a store, as SQLite is told; `postgres_dialect.py` says the same to PostgreSQL.

Operators, programs and the like are named by small integers inside the database only.
"""

from __future__ import annotations

VERSION = 1

# "SLPS": how a store is told from any other SQLite file.
APPLICATION_ID = 0x534C5053

# In the order in which rows can be copied: what is referred to comes first.
TABLES = (
    "hardware",
    "model",
    "operator",
    "sketch",
    "program",
    "session",
    "session_operator",
    "slot",
    "slot_program",
    "trial",
    "state",
)

# `trial.operator` repeats its program's, so that one index finds the best trial of an operator on a piece of
# hardware and counts trials too. A failure has no median, and NULL never counts as fast.
SCHEMA = """
CREATE TABLE hardware (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    descriptor TEXT NOT NULL
);
CREATE TABLE model (
    id INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    source TEXT NOT NULL
);
CREATE TABLE operator (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    kinds TEXT NOT NULL,
    flops INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    shapes TEXT NOT NULL,
    module BLOB NOT NULL
);
CREATE TABLE sketch (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    text BLOB
);
CREATE TABLE program (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    operator INTEGER NOT NULL REFERENCES operator,
    sketch INTEGER NOT NULL REFERENCES sketch,
    decisions TEXT NOT NULL
);
CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    model INTEGER NOT NULL REFERENCES model,
    hardware INTEGER NOT NULL REFERENCES hardware,
    options TEXT NOT NULL,
    created_at REAL NOT NULL,
    status TEXT NOT NULL,
    elapsed REAL NOT NULL,
    result TEXT NOT NULL
);
CREATE TABLE session_operator (
    session INTEGER NOT NULL REFERENCES session,
    operator INTEGER NOT NULL REFERENCES operator,
    weight INTEGER NOT NULL,
    UNIQUE (session, operator)
);
CREATE TABLE slot (
    session INTEGER NOT NULL REFERENCES session,
    slot INTEGER NOT NULL,
    operator INTEGER NOT NULL REFERENCES operator,
    search_seconds REAL NOT NULL,
    note TEXT NOT NULL,
    finished INTEGER NOT NULL,
    stats TEXT NOT NULL,
    UNIQUE (session, slot)
);
CREATE TABLE slot_program (
    session INTEGER NOT NULL REFERENCES session,
    slot INTEGER NOT NULL,
    position INTEGER NOT NULL,
    program INTEGER NOT NULL REFERENCES program,
    origin TEXT NOT NULL,
    UNIQUE (session, slot, position)
);
CREATE TABLE trial (
    id INTEGER PRIMARY KEY,
    operator INTEGER NOT NULL REFERENCES operator,
    hardware INTEGER NOT NULL REFERENCES hardware,
    program INTEGER NOT NULL REFERENCES program,
    origin TEXT NOT NULL,
    median REAL,
    samples BLOB NOT NULL,
    failure TEXT,
    message TEXT NOT NULL,
    stopped_early INTEGER NOT NULL,
    noisy INTEGER NOT NULL,
    verified INTEGER NOT NULL,
    duplicate INTEGER NOT NULL,
    build_seconds REAL NOT NULL,
    run_seconds REAL NOT NULL,
    overhead_seconds REAL NOT NULL,
    measured_at REAL NOT NULL,
    session INTEGER REFERENCES session,
    slot INTEGER,
    position INTEGER
);
CREATE INDEX trial_best ON trial (hardware, operator, median);
CREATE INDEX trial_program ON trial (program);
CREATE INDEX trial_session ON trial (session) WHERE session IS NOT NULL;
CREATE INDEX slot_program_program ON slot_program (program);
CREATE TABLE state (
    session INTEGER NOT NULL REFERENCES session,
    name TEXT NOT NULL,
    slot INTEGER NOT NULL,
    blob BLOB NOT NULL,
    UNIQUE (session, name)
);
"""
