"""What each operator of a compiled model takes, measured while the whole model runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from slipstream.artifact.directory import artifact_in
from slipstream.artifact.manifest import WEIGHTS, Manifest
from slipstream.artifact.weights import map_weights
from slipstream.frontends.inputs import Array
from slipstream.machine.threads import use_threads

# Calls of the virtual machine itself: they reserve memory or reshape without touching it.
_MACHINERY = ("vm.builtin.",)


class OurProfile:
    """An artifact in a virtual machine of its own that notes when each compiled function begins and ends."""

    def __init__(self, directory: Path, feeds: dict[str, Array], threads: int) -> None:
        directory = artifact_in(directory)
        manifest = Manifest.read(directory)
        use_threads(threads)
        self._weights = map_weights(directory / WEIGHTS, manifest.weights)
        self._machine = relax.VirtualMachine(tvm.runtime.load_module(str(directory / manifest.library)), tvm.cpu())
        shared = tvm.runtime.convert([tvm.runtime.from_dlpack(weight) for weight in self._weights])
        self._arguments = [*(tvm.runtime.tensor(feeds[spec.name]) for spec in manifest.inputs), shared]
        self._machine.set_instrument(self._note)
        self._began = 0.0
        self._calls: list[tuple[str, float]] = []

    def run(self) -> list[tuple[str, float]]:
        """(function, seconds) of one run, in the order of the calls."""
        self._calls = []
        self._machine["main"](*self._arguments)
        return [call for call in self._calls if not call[0].startswith(_MACHINERY)]

    def _note(self, _: Any, name: str, before: bool, *arguments: Any) -> int:
        if before:
            self._began = time.perf_counter()
        else:
            self._calls.append((str(name), time.perf_counter() - self._began))
        return 0
