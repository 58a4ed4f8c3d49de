"""Making a model's library and the pool's with the C compiler (or Zig) that links compiled models."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from slipstream.errors import BuildError
from slipstream.machine.linker import find_linker, no_linker
from slipstream.runtime.library import POOL

NATIVE = Path(__file__).parent / "native"
_PUBLIC = ("create", "destroy", "run", "set_threads", "inputs", "outputs", "input", "output", "error")
_FOR_TUNING = ("profile", "steps", "step")
_FLAGS = ("-O2", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden")


def pool_library() -> Path:
    """The thread pool's library, compiled once for all models and kept in the user's cache.

    It stays loaded: threads that called a model free their buffers by its code when they end.
    """
    sources = b"".join((NATIVE / name).read_bytes() for name in ("pool.h", "pool.c"))
    digest = hashlib.blake2b(sources + " ".join(_FLAGS).encode(), digest_size=8).hexdigest()
    path = cache_folder() / f"pool-{platform.machine()}-{digest}" / POOL
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BuildError(
                f"cannot write {path.parent} ({error.strerror}): set XDG_CACHE_HOME to a folder that can be written"
            ) from None
        extra = ["-fvisibility=default", f"-Wl,-soname,{POOL}", "-Wl,-z,nodelete", "-pthread"]
        # Threads and containers that share the folder may be at the same: each has a name of its own, the last stays.
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            _compile([NATIVE / "pool.c"], unfinished := Path(scratch) / POOL, extra)
            unfinished.rename(path)
    return path


def copy_pool(directory: Path) -> None:
    """Put the thread pool's library beside a model's, if it is not there: this process may have it open."""
    if not (directory / POOL).exists():
        shutil.copyfile(pool_library(), directory / POOL)


def cache_folder() -> Path:
    """Where this user's caches are."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "slipstream"


def link_model(source: str, objects: Sequence[bytes], output: Path, prefix: str) -> None:
    """Link the object files of a model's operators with its C `source` into the library `output`.

    The pool's library has to be in the same folder. Programs that are linked with the model look for it under the name
    it is exported with, wherever they are.
    """
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (plan := scratch / "plan.c").write_text(source)
        public = " ".join(f"*_{name};" for name in (*_PUBLIC, *_FOR_TUNING))
        (exported := scratch / "plan.map").write_text(f"{{ global: {public} local: *; }};\n")
        files = [scratch / f"operators{n}.o" for n in range(len(objects))]
        for file, content in zip(files, objects, strict=True):
            file.write_bytes(content)
        passed = [f"--version-script,{exported}", "-rpath,$ORIGIN", f"-soname,lib{prefix}.so"]
        extra = [f"-I{NATIVE}", *(f"-Wl,{option}" for option in passed), str(output.parent / POOL), "-lm"]
        _compile([plan, *files], output, extra)


def _compile(files: Sequence[Path], output: Path, extra: Sequence[str]) -> None:
    compiler = find_linker()
    if compiler is None:
        raise no_linker()
    command = [*compiler, *_FLAGS, "-o", str(output), *map(str, files), *extra]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it printed nothing"]
        said = next((line for line in lines if "error" in line), lines[-1])
        raise BuildError(f"compiling with {compiler[0]} failed: {said}")
