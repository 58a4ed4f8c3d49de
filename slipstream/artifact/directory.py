"""Writing an artifact directory so that it is there whole, or not at all, and the previous one survives."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slipstream.artifact.manifest import FILE_NAME
from slipstream.errors import ArtifactError
from slipstream.machine.mounts import is_noexec, mounts

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# File systems that cannot swap two directories, and overlays, which cannot move one of a lower layer.
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EXDEV)


@contextmanager
def replace_directory(destination: Path) -> Iterator[Path]:
    """A staging directory beside `destination` that takes its place when the block ends well.

    Killed at any moment, `destination` holds the previous artifact or the new one, nothing in between. Where the file
    system cannot swap directories there is a moment without either: killed there, the next call puts the previous one
    back. A link stays, and what it leads to is replaced.
    """
    check_destination(destination)
    given, destination = destination, _real(destination)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _tidy(destination)
        staging, lock = _make_staging(destination)
    except OSError as error:
        raise ArtifactError(f"cannot write {given}: {_reason(error)}; choose another -o") from error
    try:
        yield staging
        _take_place(staging, destination)
    except OSError as error:
        raise ArtifactError(f"cannot write {given}: {_reason(error)}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(lock)


def replace_text(path: Path, text: str) -> None:
    """Write a file so that it has the previous text or the new one at any moment."""
    unfinished = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    unfinished.write_text(text)
    unfinished.replace(path)


def artifact_in(directory: Path) -> Path:
    """The artifact a directory is or, if it is a tuning session's, has in `model`."""
    inside = directory / "model"
    try:
        return inside if not (directory / FILE_NAME).is_file() and (inside / FILE_NAME).is_file() else directory
    except OSError as error:
        raise ArtifactError(f"cannot read {directory}: {_reason(error)}") from error


def check_destination(destination: Path) -> None:
    """Refuse, before any work is done, a destination that cannot or should not be written."""
    given, destination = destination.absolute(), _real(destination)
    if destination.exists():
        if not destination.is_dir():
            raise ArtifactError(f"{given} is a file: give a directory for the compiled model")
        if _is_mount_point(destination):
            raise ArtifactError(
                f"{given} is a mount point, which cannot be replaced in one step: "
                f"choose a directory in it, such as {given / 'model'}"
            )
        is_artifact = (destination / FILE_NAME).is_file() or is_set_aside(destination)
        if any(destination.iterdir()) and not is_artifact:
            raise ArtifactError(
                f"{given} is not empty and not a compiled model: choose another directory, or empty this one"
            )
    parent = next(p for p in destination.parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ArtifactError(f"cannot write {given}: {parent} is not a writable directory; choose another -o")


def check_executable(destination: Path) -> None:
    """Refuse, before any work is done, a destination from which the compiled code could not be loaded."""
    if is_noexec(destination):
        raise ArtifactError(
            f"{destination} is on a file system that is mounted noexec, from which no compiled code can be loaded: "
            "choose another -o, or have it mounted without noexec"
        )


def is_set_aside(destination: Path) -> bool:
    """Whether an artifact was taken away to make room for the next one, which is not there yet."""
    destination = _real(destination)
    return not (destination / FILE_NAME).is_file() and bool(_beside(destination, "previous"))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_mount_point(path: Path) -> bool:
    """Directories of the same file system that are mounted elsewhere (bind mounts) are in the kernel's list alone."""
    if os.path.ismount(path):
        return True
    with suppress(OSError, ValueError):
        return any(mount.place == str(path) for mount in mounts())
    return False


def _take_place(staging: Path, destination: Path) -> None:
    if not destination.exists():
        staging.rename(destination)
        return
    try:
        _exchange(staging, destination)
    except OSError as error:
        if error.errno not in _CANNOT_EXCHANGE:
            raise
        previous = staging.with_name(staging.name.replace(".partial-", ".previous-"))
        try:
            _take_away(destination, previous)
            staging.rename(destination)
        except BaseException:
            _put_back(previous, destination)
            raise
        shutil.rmtree(previous, ignore_errors=True)


def _take_away(destination: Path, previous: Path) -> None:
    """Move a directory; where it cannot be moved, what is in it."""
    try:
        destination.rename(previous)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        previous.mkdir()
        for path in sorted(destination.iterdir(), key=_is_content):
            shutil.move(path, previous / path.name)


def _put_back(previous: Path, destination: Path) -> None:
    if not previous.exists():
        return
    if not destination.exists():
        previous.rename(destination)
        return
    for path in sorted(previous.iterdir(), key=_is_content, reverse=True):
        shutil.move(path, destination / path.name)
    previous.rmdir()


def _is_content(path: Path) -> bool:
    """All but the manifest, which leaves first and comes back last: a directory that has one has all of it."""
    return path.name != FILE_NAME


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, "no renameat2")
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _make_staging(destination: Path) -> tuple[Path, int]:
    """A new directory and a descriptor that holds its lock, which a process that is killed loses.

    Process numbers would not tell who is alive: in containers every process may have the same.
    """
    while True:
        staging = destination.with_name(f".{destination.name}.partial-{secrets.token_hex(4)}")
        staging.mkdir()
        try:
            lock = os.open(staging, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        with suppress(OSError):  # without locks on this file system nobody takes it for one that was left behind
            fcntl.flock(lock, fcntl.LOCK_EX)
        if staging.exists():  # before it was locked, another process may have tidied it away
            return staging, lock
        os.close(lock)


def _tidy(destination: Path) -> None:
    """Drop what killed compiles left beside `destination`; put back what one took away and did not replace."""
    for path in _beside(destination, "previous"):
        with _left_behind(path.with_name(path.name.replace(".previous-", ".partial-"))) as abandoned:
            if abandoned and (destination / FILE_NAME).is_file():
                shutil.rmtree(path, ignore_errors=True)
            elif abandoned:
                _put_back(path, destination)
    for path in _beside(destination, "partial"):
        with _left_behind(path) as abandoned:
            if abandoned:
                shutil.rmtree(path, ignore_errors=True)


def _beside(destination: Path, kind: str) -> list[Path]:
    start = f".{destination.name}.{kind}-"
    with suppress(OSError):
        return [path for path in destination.parent.iterdir() if path.name.startswith(start)]
    return []


@contextmanager
def _left_behind(staging: Path) -> Iterator[bool]:
    """Whether a staging directory is gone, or no process has its lock: then nobody gets it until the block ends."""
    try:
        descriptor = os.open(staging, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        yield isinstance(error, FileNotFoundError)
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
