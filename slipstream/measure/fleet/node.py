"""What a session's actor does on a node: build programs for it and, where the hardware is the target's, run them.

Ray calls the methods from several threads. A build is a worker process of its own, named by the session, that answers
one request after another; a run is one too, or goes to the process that has the GPU or holds an RPC device. Whatever a
program does, it does not end the actor: if that ends, or raises, the node has failed.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from slipstream.measure.config import MeasureConfig
from slipstream.measure.devices.cpu import RUN_OPTIONS, with_models_pool
from slipstream.measure.devices.gpu_process import GpuProcess, HeldGpu
from slipstream.measure.fleet.offer import GPUS, RPC
from slipstream.measure.fleet.rpc_held import connect, rpc_devices
from slipstream.measure.roles import PREPARE
from slipstream.measure.timing.noise import PROBE_SECONDS
from slipstream.measure.trial import Answer, Stage, Trial, answer_of
from slipstream.measure.types import Candidate, Failure, FailureKind
from slipstream.processes.channel import ChannelClosedError
from slipstream.processes.fork_server import ForkServer, WorkerProcess

CPU = "cpu"
_TICK_SECONDS = 0.05
_MOST_ARENAS = 64


class Node:
    """Builds for `target`, and measures on this node's devices of the class `hardware`, unless that is empty: its CPU,
    its GPUs, or the RPC devices that it is near.

    While a program runs on the CPU, the builders here are paused and no new one begins. `limits` are those of
    `MeasureConfig` in seconds; what memory a program may have is up to the node.
    """

    def __init__(self, target: dict[str, Any], limits: dict[str, float], hardware: str) -> None:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's, from the actor's share of the cores
        self._config = MeasureConfig(**limits)  # type: ignore[arg-type]
        self._hardware, self._threads = hardware, target["threads"]
        is_gpu = target["gpu"] is not None
        where = os.environ.get(RPC, "") if hardware else ""
        self._remote = rpc_devices(where, self._threads, self._config) if where else {}
        self._has_cpu = bool(hardware) and not is_gpu and not where
        gpus = os.environ.get(GPUS, "").split(",") if is_gpu and hardware else []
        options = next((device.server_options for device in self._remote.values()), {})
        environment = {"CUDA_VISIBLE_DEVICES": ""} if is_gpu else with_models_pool() if self._has_cpu else {}
        self._server = ForkServer(PREPARE, {"target": target, **options}, self._config.memory_bytes, environment)
        self._gpus = {name: HeldGpu(name) for name in gpus}
        # A GPU's process answers one request at a time, in whatever thread it was asked.
        self._gpu_turns = {name: threading.Lock() for name in gpus}
        self._builds: dict[str, Trial] = {}
        self._asked: set[str] = set()
        self._cancelled: set[str] = set()
        self._kept: dict[str, Trial | GpuProcess] = {}
        self._arenas: dict[str, int] = {}
        self._probe: WorkerProcess | None = None
        self._probed_at = 0.0
        self._counts: Counter[str] = Counter()
        self._began = time.monotonic()
        # Of the fork server; of the CPU, while a program runs there. Taken in the order turn, server.
        self._lock, self._turn = threading.RLock(), threading.Lock()
        self._is_quiet = False
        self._server.wait_until_ready()
        for name, device in self._remote.items():
            device.attach(self._server, self._lock, name)

    def devices(self) -> list[str]:
        """What it measures on: `CPU`, GPUs as CUDA_VISIBLE_DEVICES names them, or RPC devices it could connect to."""
        if self._remote:
            return connect(self._remote, self._hardware, self._threads)
        return [CPU] if self._has_cpu else list(self._gpus)

    def stats(self) -> dict[str, float]:
        """How many programs were built, run and failed here, the seconds since it began, and how many are built now."""
        age = time.monotonic() - self._began
        return {**self._counts, "seconds": age, "building": len(self._builds)}

    # Building

    def build(self, name: str, requests: Sequence[Answer]) -> tuple[Answer, bytes, str]:
        """The answer of the worker `name` to the last of `requests`, the library it made, and what it printed.

        A worker that is not here yet does all of them. It ends when it has made a library or failed.
        """
        trial = self._builds.get(name)
        left = requests if trial is None else requests[-1:]
        trial = trial or self._start(name)
        self._asked.add(name)
        library, answer = b"", Answer()
        for request in left:
            path = self._scratch(trial)
            if makes := "generate_library" in request:
                request = {"generate_library": {**request["generate_library"], "path": str(path)}}
            found = self._ask(trial, request, self._config.build_seconds)
            answer = found if isinstance(found, dict) else _failed(found)
            if "failure" not in answer and not makes:
                continue
            library = _take(path)
            if library or name not in self._cancelled:
                self._counts["built" if library else "failed"] += 1
            self._cancelled.discard(name)
            stderr = found.stderr if isinstance(found, Failure) else ""
            self._asked.discard(name)
            self.end(name)
            return answer, library, stderr
        self._asked.discard(name)
        return answer, library, ""

    def end(self, name: str) -> None:
        """End a build, whatever it is doing."""
        with self._lock:
            trial = self._builds.get(name)
            if trial is None or trial.worker is None:
                return
            if name in self._asked:
                self._cancelled.add(name)
                self._server.kill_and_wait(trial.worker)  # who waits for its answer finds the end of it
            else:
                del self._builds[name]
                self._server.discard(trial.worker)

    def _start(self, name: str) -> Trial:
        with self._turn, self._lock:
            trial = self._builds[name] = Trial(Candidate("", ""))
            trial.start_building(self._server.fork("build"), self._config.build_seconds)
        return trial

    # Running

    def run(
        self, device: str, launch: dict[str, Any], library: bytes, module: str, arena: Sequence[Any]
    ) -> tuple[Answer, str]:
        """The answer to a run and what the program printed. `arena` holds Ray's reference to the operator's arguments.

        A program to `keep` can be sampled afterwards under the name of its library.
        """
        name = launch.pop("library")
        file = self._arena(launch["operator"], arena)
        path = self._run_path(name)
        path.write_bytes(library)
        try:
            here = {**launch, "library": str(path), "arena": f"/proc/{os.getpid()}/fd/{file}"}
            if device in self._gpus:
                found = self._run_on_gpu(device, name, here)
            elif device in self._remote:
                found = self._remote[device].run(name, here, module)
            else:
                found = self._run_on_cpu(name, launch, path, module, file)
        finally:
            path.unlink(missing_ok=True)
        self._counts["failed" if isinstance(found, Failure) else "ran"] += 1
        return (_failed(found), found.stderr) if isinstance(found, Failure) else (found, "")

    def sample(self, device: str, library: str, number: int) -> Answer:
        """One more sample of a program that was kept."""
        kept, options = self._kept.get(library), {"number": number, "repeat": 1}
        found: Answer | Failure
        if device in self._remote:
            found = self._remote[device].sample(library, number)
        elif isinstance(kept, Trial):
            with self._quiet():
                found = self._ask(kept, {"sample": options}, self._config.run_seconds)
        else:
            request = {"sample": {"library": str(self._run_path(library)), **options}}
            found = self._ask_keeper(device, kept, request)
        return _failed(found) if isinstance(found, Failure) else found

    def forget(self, device: str, library: str) -> Answer:
        """Free a program that was kept."""
        kept = self._kept.pop(library, None)
        if device in self._remote:
            self._remote[device].forget(library)
        elif isinstance(kept, Trial):
            self._discard(kept)
        else:
            self._ask_keeper(device, kept, {"forget": {"library": str(self._run_path(library))}})
        return {}

    def probe(self, device: str) -> Answer:
        """Time the reference kernel alone."""
        if device in self._gpus:
            return {"probe": []}
        if device in self._remote:
            return {"probe": self._remote[device].probe()}
        with self._quiet():
            return {"probe": self._time_probe(0.0)}

    def _run_on_cpu(self, name: str, launch: dict[str, Any], path: Path, module: str, file: int) -> Answer | Failure:
        with self._turn, self._lock:
            trial = Trial(Candidate("", ""), worker=self._server.fork("build", file), stage=Stage.RUNNING)
        found = self._ask(
            trial, {"load_library": {"path": str(path), "module": module}}, self._config.remote.device_seconds
        )
        if not isinstance(found, Failure):
            with self._quiet():
                probe = self._time_probe(PROBE_SECONDS)
                found = self._ask(trial, {"run": {n: launch[n] for n in RUN_OPTIONS}}, self._config.run_seconds)
            if not isinstance(found, Failure):
                found["probe"] = probe
        if launch["keep"] and not isinstance(found, Failure):
            self._kept[name] = trial
        else:
            self._discard(trial)
        return found

    def _run_on_gpu(self, device: str, name: str, launch: dict[str, Any]) -> Answer | Failure:
        with self._gpu_turns[device]:
            process = self._gpus[device].process
            found = self._ask_gpu(device, {"launch": launch})
            if launch["keep"] and not isinstance(found, Failure):
                self._kept[name] = process
        return found

    def _ask_keeper(self, device: str, kept: Trial | GpuProcess | None, request: dict[str, Any]) -> Answer | Failure:
        """What the process of a GPU answers if it is still the one that `kept` a program."""
        lost = Failure(FailureKind.DEVICE_LOST, "the process that held the program has ended")
        if device not in self._gpus:
            return lost
        with self._gpu_turns[device]:
            return self._ask_gpu(device, request) if kept is self._gpus[device].process else lost

    def _ask_gpu(self, device: str, request: dict[str, Any]) -> Answer | Failure:
        """What its process answers to the thread whose turn it is."""
        gpu, seconds = self._gpus[device], self._config.run_seconds
        process = gpu.process
        limit = process.seconds_until_answer(seconds)
        with suppress(ChannelClosedError):
            process.channel.send(request)
        process.channel.is_readable(limit)
        return gpu.answer(seconds)

    def _time_probe(self, seconds: float) -> list[float]:
        """The reference kernel's times, if it was not timed in the last so many seconds."""
        if time.monotonic() - self._probed_at < seconds:
            return []
        try:
            if self._probe is None:
                with self._lock:
                    self._probe = self._server.fork("build")
            self._probe.channel.send({"probe": {}})
            samples: list[float] = self._probe.channel.receive(self._config.run_seconds)["samples"]
        except (ChannelClosedError, TimeoutError, KeyError):
            if self._probe is not None:
                with self._lock:
                    self._server.discard(self._probe)
            self._probe = None
            return []
        self._probed_at = time.monotonic()
        return samples

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """The CPU for one program: builders are paused, and their limits with them."""
        with self._turn:
            with self._lock:
                building = [trial for trial in self._builds.values() if trial.worker is not None]
                workers = [trial.worker for trial in building if trial.worker is not None]
                self._is_quiet = True
                self._server.pause(workers)
            began = time.monotonic()
            try:
                yield
            finally:
                with self._lock:
                    for trial in building:
                        trial.was_paused(time.monotonic() - began)
                    self._is_quiet = False
                    self._server.resume(workers)

    def _arena(self, operator: str, arena: Sequence[Any]) -> int:
        """The file with an operator's arguments, fetched when the first of its programs comes."""
        if operator not in self._arenas:
            import ray

            if len(self._arenas) == _MOST_ARENAS:
                os.close(self._arenas.pop(next(iter(self._arenas))))
            file = os.memfd_create("slipstream-arena", os.MFD_CLOEXEC)
            with os.fdopen(os.dup(file), "wb") as writing:
                writing.write(ray.get(arena[0]))
            self._arenas[operator] = file
        return self._arenas[operator]

    # Both

    def _ask(self, trial: Trial, request: dict[str, Any], seconds: float) -> Answer | Failure:
        """What its worker answers, or why it does not."""
        assert trial.worker is not None
        trial.deadline = time.monotonic() + seconds
        trial.send(request)
        while True:
            ready = trial.worker.channel.is_readable(_TICK_SECONDS)
            with self._lock:
                if not ready and trial.is_building and self._is_quiet:
                    continue
                found = answer_of(trial, self._server, ready, self._config)
            if found is not None:
                return found

    def _discard(self, trial: Trial) -> None:
        if trial.worker is not None:
            with self._lock:
                self._server.discard(trial.worker)

    def _run_path(self, library: str) -> Path:
        """Where a library that came from elsewhere is put."""
        return self._server.scratch / f"run-{Path(library).name}"

    def _scratch(self, trial: Trial) -> Path:
        return self._server.scratch / f"{trial.worker.name if trial.worker else 0}.so"


def _failed(failure: Failure) -> Answer:
    return {"failure": failure.kind.value, "message": failure.message}


def _take(path: Path) -> bytes:
    """The content of a file that is not needed any more; nothing if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    finally:
        path.unlink(missing_ok=True)
