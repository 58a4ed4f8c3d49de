"""What trials are about: hardware, models, operators, sketches and programs. Adding one twice changes nothing."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from slipstream.store.database import Database
from slipstream.store.errors import StoreError
from slipstream.store.records import OperatorRecord, ProgramRecord, canonical_json, digest

_PROGRAM_DIGEST_BYTES = 16
_PAGE = 500
_OPERATOR_COLUMNS = "key, name, kinds, flops, bytes, shapes, module"


class Catalogue:
    """The part of a store that says what its trials are about."""

    _db: Database

    def add_hardware(self, descriptor: Mapping[str, Any]) -> str:
        """Remember a piece of hardware; the digest that trials name it by."""
        text = canonical_json(dict(descriptor))
        name = digest(text)
        with self._db.transaction():
            self._db.lock_catalogue()
            self._db.execute(
                "INSERT INTO hardware (digest, descriptor) VALUES (?, ?) ON CONFLICT DO NOTHING", (name, text)
            )
        return name

    def hardware(self, digest: str) -> dict[str, Any]:
        row = self._db.row("SELECT descriptor FROM hardware WHERE digest = ?", (digest,))
        if row is None:
            raise StoreError(
                f"{self._db.location} has no hardware {digest}: 'slipstream store stats' lists what it has"
            )
        found: dict[str, Any] = json.loads(row[0])
        return found

    def add_model(self, fingerprint: str, name: str, source: str) -> None:
        with self._db.transaction():
            self._db.lock_catalogue()
            self._db.execute(
                "INSERT INTO model (fingerprint, name, source) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (fingerprint, name, source),
            )

    def add_operators(self, records: Iterable[OperatorRecord]) -> None:
        with self._db.transaction():
            self._db.lock_catalogue()
            self._db.execute_many(
                f"INSERT INTO operator ({_OPERATOR_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (_operator_row(record) for record in records),
            )

    def operator(self, key: str) -> OperatorRecord | None:
        row = self._db.row(f"SELECT {_OPERATOR_COLUMNS} FROM operator WHERE key = ?", (key,))
        return None if row is None else _operator_record(row)

    def operators(self) -> Iterator[OperatorRecord]:
        for (key,) in self._db.rows("SELECT key FROM operator ORDER BY id"):
            record = self.operator(key)
            if record is not None:
                yield record

    def add_sketch(self, digest: str, text: str) -> None:
        with self._db.transaction():
            self._db.lock_catalogue()
            self._db.execute(
                "INSERT INTO sketch (digest, text) VALUES (?, ?) "
                "ON CONFLICT (digest) DO UPDATE SET text = excluded.text WHERE sketch.text IS NULL",
                (digest, zlib.compress(text.encode())),
            )

    def sketch(self, digest: str) -> str | None:
        row = self._db.row("SELECT text FROM sketch WHERE digest = ?", (digest,))
        return None if row is None or row[0] is None else zlib.decompress(row[0]).decode()


def _operator_row(record: OperatorRecord) -> tuple[Any, ...]:
    return (
        record.key,
        record.name,
        canonical_json(record.kinds),
        record.flops,
        record.bytes,
        canonical_json(record.shapes),
        zlib.compress(record.module.encode()),
    )


def _operator_record(row: tuple[Any, ...]) -> OperatorRecord:
    key, name, kinds, flops, size, shapes, module = row
    return OperatorRecord(
        key=key,
        name=name,
        kinds=tuple(json.loads(kinds)),
        flops=flops,
        bytes=size,
        shapes=tuple((tuple(shape), dtype) for shape, dtype in json.loads(shapes)),
        module=zlib.decompress(module).decode(),
    )


def program_ids(db: Database, programs: Sequence[tuple[str, ProgramRecord]]) -> list[int]:
    """The rows of programs, given with the keys of their operators; made if they are new. A sketch may come before its
    text.
    """
    names = [program_digest(key, program.sketch, program.decisions) for key, program in programs]
    found = _known_programs(db, names)
    if new := {name: both for name, both in zip(names, programs, strict=True) if name not in found}:
        db.lock_catalogue()
        # Another process may have added one meanwhile.
        db.execute_many(
            "INSERT INTO program (digest, operator, sketch, decisions) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [
                (name, id_of(db, "operator", key), _sketch_id(db, program.sketch), program.decisions)
                for name, (key, program) in new.items()
            ],
        )
        found |= _known_programs(db, list(new))
    return [found[name] for name in names]


def _known_programs(db: Database, names: Sequence[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for start in range(0, len(names), _PAGE):
        part = names[start : start + _PAGE]
        places = ", ".join("?" * len(part))
        found |= dict(db.rows(f"SELECT digest, id FROM program WHERE digest IN ({places})", part))
    return found


def _sketch_id(db: Database, name: str) -> int:
    if ("sketch", name) not in db.ids:
        db.execute("INSERT INTO sketch (digest) VALUES (?) ON CONFLICT DO NOTHING", (name,))
        (db.ids["sketch", name],) = db.rows("SELECT id FROM sketch WHERE digest = ?", (name,))[0]
    return db.ids["sketch", name]


def program_digest(operator_key: str, sketch_digest: str, decisions: str) -> bytes:
    """What makes a program unique, in a form far shorter than its decisions."""
    text = f"{operator_key}\0{sketch_digest}\0{decisions}"
    return hashlib.blake2b(text.encode(), digest_size=_PROGRAM_DIGEST_BYTES).digest()


# Table -> the column that names a row, and the method that makes one.
_NAMES = {
    "hardware": ("digest", "add_hardware"),
    "model": ("fingerprint", "add_model"),
    "operator": ("key", "add_operators"),
    "session": ("name", "create_session"),
}


def id_of(db: Database, table: str, name: str) -> int:
    """The row number of something named; an error says how it should have come here."""
    if (table, name) not in db.ids:
        column, how = _NAMES[table]
        row = db.row(f"SELECT id FROM {table} WHERE {column} = ?", (name,))
        if row is None:
            raise StoreError(f"{db.location} has no {table} {name}: {how} comes first")
        db.ids[table, name] = row[0]
    return db.ids[table, name]
