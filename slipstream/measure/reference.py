"""What each operator should compute: its inputs and expected results, made once per session by a worker."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from slipstream.errors import SlipstreamError
from slipstream.measure.config import MeasureConfig
from slipstream.measure.types import Failure, FailureKind
from slipstream.processes.channel import ChannelClosedError
from slipstream.processes.fork_server import ForkServer, WorkerProcess

# The unscheduled function runs on one core and keeps nothing in registers.
_PLAIN_PATIENCE = 12


@dataclass
class _Reference:
    arena: int
    layout: list[dict[str, Any]] | None = None
    plain: bool = False
    worker: WorkerProcess | None = None
    deadline: float = 0.0
    failure: Failure | None = None


class References:
    """Arenas of operators, filled by workers while programs are being built."""

    def __init__(self, texts: Mapping[str, str], config: MeasureConfig) -> None:
        self._texts = dict(texts)
        self._config = config
        self._known: dict[str, _Reference] = {}

    def start(self, operator: str, server: ForkServer) -> int:
        """The operator's arena; begins to fill it if nobody has."""
        if operator not in self._texts:
            raise SlipstreamError(f"cannot measure a program of operator {operator!r}: its reference was not given")
        if operator not in self._known:
            arena = os.memfd_create("slipstream-arena", os.MFD_CLOEXEC)
            self._known[operator] = _Reference(arena)
            self._ask(operator, server)
        return self._known[operator].arena

    def wait(self, server: ForkServer) -> None:
        """Wait for all that were started. The default program comes first, the unscheduled function if it fails."""
        for operator, reference in self._known.items():
            while reference.worker is not None:
                failure = self._collect(reference, server)
                if failure is None:
                    break
                if reference.plain:
                    reference.failure = failure
                else:
                    reference.plain = True
                    self._ask(operator, server)

    def layout(self, operator: str) -> list[dict[str, Any]] | Failure:
        """Where the arguments lie in the arena, or why there are none."""
        reference = self._known[operator]
        return reference.failure or reference.layout or []

    def arena(self, operator: str) -> int:
        """The descriptor of the operator's arena."""
        return self._known[operator].arena

    def is_plain(self, operator: str) -> bool:
        """Whether the operator's results are those of the unscheduled function."""
        return self._known[operator].plain

    def recompute_plainly(self, operator: str, server: ForkServer) -> bool:
        """Replace the default program's results by the unscheduled function's; False if that was done already."""
        reference = self._known[operator]
        if reference.plain:
            return False
        reference.plain = True
        self._ask(operator, server)
        self.wait(server)
        return reference.failure is None

    def forget_workers(self) -> None:
        """Their server is gone: what they were doing must be asked for again."""
        for operator in [o for o, r in self._known.items() if r.worker is not None]:
            os.close(self._known.pop(operator).arena)

    def close(self) -> None:
        for reference in self._known.values():
            os.close(reference.arena)
        self._known.clear()

    def _ask(self, operator: str, server: ForkServer) -> None:
        reference = self._known[operator]
        reference.worker = server.fork(reference.arena)
        patience = _PLAIN_PATIENCE if reference.plain else 1
        reference.deadline = time.monotonic() + self._config.build_seconds + patience * self._config.run_seconds
        seed = crc32(operator.encode()) ^ self._config.seed
        request = {"module": self._texts[operator], "seed": seed, "plain": reference.plain}
        try:
            reference.worker.channel.send({"reference": request})
        except ChannelClosedError:
            return  # `_collect` finds out

    def _collect(self, reference: _Reference, server: ForkServer) -> Failure | None:
        worker, reference.worker = reference.worker, None
        assert worker is not None
        try:
            answer = worker.channel.receive(max(0.0, reference.deadline - time.monotonic()))
            if "failure" in answer:
                return _about_reference(answer["message"], worker)
            reference.layout = answer["layout"]
        except TimeoutError:
            return _about_reference("it took too long", worker)
        except ChannelClosedError:
            return _about_reference(server.end_of(worker).reason, worker)
        finally:
            server.discard(worker)
        return None


def _about_reference(message: str, worker: WorkerProcess) -> Failure:
    text = f"the operator itself could not be run to compare with: {message}"
    return Failure(FailureKind.RUN_ERROR, text, worker.last_lines())


def reference_text(func: Any) -> str:
    """An unscheduled TIR function (`Operator.func`) as the text that `LocalMeasurer` takes."""
    import tvm

    return str(tvm.ir.save_json(tvm.IRModule({"main": func.with_attr("global_symbol", "main")})))
