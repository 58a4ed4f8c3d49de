"""The folder of a session: its store, which session of the store it is, and the compiled models."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slipstream.artifact.directory import replace_text
from slipstream.errors import SlipstreamError
from slipstream.frontends.archives import read_archive, write_archive
from slipstream.frontends.inputs import Array
from slipstream.store import PostgresUrl, Store, StoreLocation, store_location
from slipstream.store.ownership import hold

STORE, MODEL, SESSION, INPUTS = "store.db", "model", "session.json", "inputs.npz"
LOCK = "session.lock"  # held by the process that begins a session


class SessionDirectoryError(SlipstreamError):
    """A directory that is no session, or one that a new session cannot have."""


@dataclass(frozen=True)
class SessionDirectory:
    """`store` is the SQLite file (shared ones live elsewhere) or a PostgreSQL database, `session` its id there.
    `models` are the names of several models, none for a session of one.
    """

    path: Path
    store: StoreLocation
    session: str
    models: tuple[str, ...] = ()

    @property
    def model(self) -> Path:
        """Where the compiled model of a session of one goes."""
        return self.path / MODEL

    def artifact(self, model: str = "") -> Path:
        """Where the compiled model goes: the only one of the session, or that of one of its `models`."""
        return self.path / model if model else self.model

    @property
    def artifacts(self) -> list[Path]:
        return [self.artifact(model) for model in self.models or ("",)]

    def keep_inputs(self, input_data: Mapping[str, Array] | None, model: str = "") -> None:
        """Write down the inputs that were given to run the model on, for when the session is resumed."""
        if input_data:
            write_archive(self._inputs(model), input_data)

    def read_inputs(self, model: str = "") -> dict[str, Array] | None:
        """The inputs that were given; None if there were none."""
        file = self._inputs(model)
        if not file.is_file():
            return None
        try:
            return read_archive(file)
        except (OSError, ValueError) as error:
            raise SessionDirectoryError(f"{file} is damaged ({error}): put it back") from error

    def _inputs(self, model: str) -> Path:
        return self.path / own_file(INPUTS, model)

    def write(self) -> None:
        store = self.store  # of a URL, all but the password is written
        if isinstance(store, Path) and store.is_relative_to(self.path):
            store = store.relative_to(self.path)
        content: dict[str, object] = {"format": 1, "store": str(store), "session": self.session}
        if self.models:
            content["models"] = list(self.models)
        replace_text(self.path / SESSION, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> SessionDirectory:
        path = Path(path).absolute()
        file = path / SESSION
        if not path.is_dir():
            raise SessionDirectoryError(f"there is no directory {path}: start with 'slipstream tune MODEL -o DIR'")
        if not file.is_file():
            raise SessionDirectoryError(f"{path} is no tuning session: it has no {SESSION}")
        try:
            content = json.loads(file.read_text())
            models = tuple(map(str, content.get("models", ())))
            store = store_location(content["store"])
            place = store if isinstance(store, PostgresUrl) else path / store
            return cls(path, place, str(content["session"]), models)
        except OSError as error:
            raise SessionDirectoryError(f"cannot read {file}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SessionDirectoryError(f"{file} is damaged ({error}); the store beside it is not touched") from error


def own_file(name: str, model: str) -> str:
    """The name of a session's file that is there for each of several models: `bench.json` or `bench-MODEL.json`."""
    stem, dot, ending = name.rpartition(".")
    return f"{stem}-{model}{dot}{ending}" if model else name


def check_new(path: Path) -> None:
    """Refuse, before any work is done, a directory that a new session cannot have."""
    if path.exists() and not path.is_dir():
        raise SessionDirectoryError(f"{path} is a file: give a directory for the session")
    if path.is_symlink() and not path.exists():
        raise SessionDirectoryError(f"{path} is a link that leads nowhere: give a directory for the session")
    if (path / SESSION).exists():
        raise SessionDirectoryError(
            f"{path} already holds a session: 'slipstream resume {path}' goes on with it, or choose another -o"
        )
    if path.exists() and any(file.name != LOCK for file in path.iterdir()):
        raise SessionDirectoryError(f"{path} is not empty: choose another directory, or empty this one")
    parent = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise SessionDirectoryError(f"cannot write {path}: {parent} is not a writable directory; choose another -o")


@contextmanager
def beginning(path: Path) -> Iterator[None]:
    """Make the folder of a new session and keep others from beginning one there until the block ends."""
    path.mkdir(parents=True, exist_ok=True)
    with hold(path / LOCK, str(path)):
        check_new(path)  # another process may have begun one since that was checked
        yield


def open_store(directory: SessionDirectory, *, read_only: bool = False) -> Store:
    if isinstance(directory.store, Path) and not directory.store.exists():
        raise SessionDirectoryError(f"the store {directory.store} of this session is gone: nothing can be resumed")
    return Store.open(directory.store, create=False, read_only=read_only)
