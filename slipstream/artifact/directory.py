"""Writing an artifact directory so that it is there whole, or not at all, and the previous one survives."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.artifact.manifest import FILE_NAME
from slipstream.errors import ArtifactError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def replace_directory(destination: Path) -> Iterator[Path]:
    """A staging directory beside `destination` that takes its place when the block ends well.

    Killed at any moment, `destination` holds the previous artifact or the new one, nothing in between.
    """
    check_destination(destination)
    destination = destination.absolute()
    _remove_stale(destination)
    staging = destination.with_name(f".{destination.name}.partial-{os.getpid()}")
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise ArtifactError(f"cannot write {destination}: {_reason(error)}; choose another -o") from error
    try:
        yield staging
        _take_place(staging, destination)
    except OSError as error:
        raise ArtifactError(f"cannot write {destination}: {_reason(error)}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    """Write a file so that it has the previous text or the new one at any moment."""
    unfinished = path.with_name(f".{path.name}-{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)


def artifact_in(directory: Path) -> Path:
    """The artifact a directory is or, if it is a tuning session's, has in `model`."""
    inside = directory / "model"
    return inside if not (directory / FILE_NAME).is_file() and (inside / FILE_NAME).is_file() else directory


def check_destination(destination: Path) -> None:
    """Refuse, before any work is done, a destination that cannot or should not be written."""
    destination = destination.absolute()
    if destination.exists():
        if not destination.is_dir():
            raise ArtifactError(f"{destination} is a file: give a directory for the compiled model")
        if any(destination.iterdir()) and not (destination / FILE_NAME).is_file():
            raise ArtifactError(
                f"{destination} is not empty and not a compiled model: choose another directory, or empty this one"
            )
    parent = next(p for p in destination.parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ArtifactError(f"cannot write {destination}: {parent} is not a writable directory; choose another -o")


def _take_place(staging: Path, destination: Path) -> None:
    if not destination.exists():
        staging.rename(destination)
        return
    try:
        _exchange(staging, destination)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        # This file system cannot swap two directories: a moment without either is the best there is.
        previous = staging.with_name(f"{staging.name}-previous")
        destination.rename(previous)
        staging.rename(destination)
        shutil.rmtree(previous, ignore_errors=True)


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, "no renameat2")
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _remove_stale(destination: Path) -> None:
    """Drop what killed compiles left beside `destination`."""
    for path in destination.parent.glob(f".{destination.name}.partial-*"):
        match = re.search(r"partial-(\d+)$", path.name)
        if match and not _alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        return True
    return False


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
