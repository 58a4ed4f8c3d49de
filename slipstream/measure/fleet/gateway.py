"""The process between a session and Ray: it hands work to nodes, and the work of nodes that failed to others.

The session's own process forks, and a process with Ray in it, which has dozens of threads, is better not forked. It
sends requests and gets answers in any order; libraries and arguments stay on this side. What a node was doing
when it failed is done again elsewhere: a build from its beginning, a run when the session asks again.
Started by `connection.py`, never by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import socket
import struct
import sys
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from slipstream.measure.fleet.cluster import Cluster, NodeHandle, NodeLostError, NoNodeError
from slipstream.measure.fleet.rpc_held import AROUND_A_RUN, RPC_DEVICE
from slipstream.measure.types import FailureKind
from slipstream.processes.child import die_with_parent
from slipstream.statistics import median

_HEADER = struct.Struct("!Q")
# A build is also given to another node when it takes so many times the usual, and at least so long.
_STRAGGLES = 5.0
_LEAST_STRAGGLE = 4.0
# What an answer may need on its way beyond the limit that the node keeps itself.
_ON_THE_WAY = 10.0
_MOST_ATTEMPTS = 8
_TIMES_PAUSED = 3.0
_START_OF_GPU = 60.0
_BEAT_SECONDS = 1.0

Message = dict[str, Any]
Built = tuple[Message, bytes, str]
"""An answer, the library that was made if any, and what the worker printed."""


@dataclass(eq=False)
class Build:
    """A program being built: what was asked so far, and the nodes that do it: one, or two if the first is slow."""

    name: str
    inbox: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    requests: list[Message] = field(default_factory=list)
    nodes: list[NodeHandle] = field(default_factory=list)


class Gateway:
    """Serves one session until it closes its end."""

    def __init__(
        self,
        options: Message,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        cluster: type[Cluster],
    ) -> None:
        self._reader, self._writer = reader, writer
        self._build_seconds: float = options["limits"]["build_seconds"]
        context = _START_OF_GPU if options["target"]["gpu"] is not None else 0.0
        self._run_seconds: float = options["limits"]["run_seconds"] + context + _ON_THE_WAY
        self._twice: float = options["limits"]["run_seconds"] + AROUND_A_RUN
        self._cluster = cluster(options, self._send)
        self._builds: dict[str, tuple[Build, asyncio.Task[None]]] = {}
        self._libraries: dict[str, tuple[bytes, str]] = {}
        self._arenas: dict[str, asyncio.Future[Any]] = {}
        self._usual: deque[float] = deque(maxlen=64)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until the session closes its end, or the cluster cannot be used any more."""
        tasks = [asyncio.create_task(work) for work in (self._read(), self._beat(), self._cluster.watch())]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
                self._take(pickle.loads(await self._reader.readexactly(size)))

    async def _beat(self) -> None:
        """A gateway that waits for Ray for ever is recognised by its silence."""
        while True:
            self._send({"kind": "beat"})
            await asyncio.sleep(_BEAT_SECONDS)

    def _send(self, message: Message) -> None:
        data = pickle.dumps(message)
        self._writer.write(_HEADER.pack(len(data)) + data)

    def _take(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "build":
            name = message["name"]
            if name not in self._builds:
                build = Build(name)
                self._builds[name] = build, asyncio.create_task(self._serve_build(build))
            self._builds[name][0].inbox.put_nowait(message["request"])
        elif kind == "end":
            _, task = self._builds.pop(message["name"], (None, None))
            if task is not None:
                task.cancel()
        elif kind == "drop":
            self._libraries.pop(message["library"], None)
        else:
            self._begin(self._serve_device(message))

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Builds

    async def _serve_build(self, build: Build) -> None:
        """Answer a build's requests until the session ends it; it holds a builder until its library is made."""
        try:
            while True:
                build.requests.append(await build.inbox.get())
                answer, library, stderr = await self._answer(build)
                if library:
                    module = build.requests[0]["lower"]["module"]
                    self._libraries[build.requests[-1]["generate_library"]["path"]] = library, module
                if library or "failure" in answer:
                    self._leave(build, *build.nodes, ended=True)
                self._send({"to": build.name, "answer": answer, "stderr": stderr})
        finally:
            self._leave(build, *build.nodes)

    async def _answer(self, build: Build) -> Built:
        """The answer to a build's last request, from a node that has done all of them."""
        lost = []
        for _ in range(_MOST_ATTEMPTS):
            try:
                if not build.nodes:
                    build.nodes.append(await self._cluster.take_builder())
                return await self._first_answer(build)
            except NoNodeError as error:
                lost.append(str(error))
                break
            except Exception as error:  # whatever it is, the session must not wait for an answer
                lost.append(str(error) or type(error).__name__)
        return {"failure": FailureKind.DEVICE_LOST.value, "message": "; ".join(lost)}, b"", ""

    async def _first_answer(self, build: Build) -> Built:
        """The answer of the build's node, or of another that is given the same when the first takes long."""
        tasks = {self._ask_build(build, node): node for node in build.nodes}
        began, error = time.monotonic(), NodeLostError("no node had it")
        while tasks:
            patience = self._patience() if len(tasks) == 1 else None
            done, _ = await asyncio.wait(tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done and (other := self._cluster.idle_builder(build.nodes)) is not None:
                build.nodes.append(other)
                tasks[self._ask_build(build, other)] = other
            for task in done:
                node = tasks.pop(task)
                if task.exception() is None:
                    self._usual.append(time.monotonic() - began)
                    for straggling, slower in tasks.items():
                        self._leave_to_end(build, straggling, slower)
                    return task.result()
                error = NodeLostError(str(task.exception()))
                self._leave(build, node)
        raise error

    def _ask_build(self, build: Build, node: NodeHandle) -> asyncio.Task[Built]:
        # Several times the node's own limit: it does not count while a program runs there.
        limit = _TIMES_PAUSED * self._build_seconds + _ON_THE_WAY
        return asyncio.create_task(self._cluster.ask(node, limit, "build", build.name, list(build.requests)))

    def _patience(self) -> float:
        """Seconds after which an answer is overdue."""
        return max(_LEAST_STRAGGLE, _STRAGGLES * median(self._usual) if self._usual else 0.0)

    def _leave(self, build: Build, *nodes: NodeHandle, ended: bool = False) -> None:
        """Free the builders that a build has on `nodes`, which end it unless it has `ended` there."""
        for node in nodes:
            build.nodes.remove(node)
            if not ended:
                self._cluster.tell(node, "end", build.name)
            self._cluster.release(node)

    def _leave_to_end(self, build: Build, straggling: asyncio.Task[Built], node: NodeHandle) -> None:
        """The same for a slow node, whose builder is free only when it answers: it may be one that never will."""

        def ended(task: asyncio.Task[Built]) -> None:
            if not task.cancelled():
                task.exception()
            self._cluster.release(node)

        build.nodes.remove(node)
        self._cluster.tell(node, "end", build.name)
        straggling.add_done_callback(ended)

    # Devices

    async def _serve_device(self, message: Message) -> None:
        """Have a device run, sample, forget or probe."""
        device, job = message["device"], message["kind"]
        answer: Message
        stderr = ""
        try:
            node, own = self._cluster.device(device)
            limit = self._run_seconds + (self._twice if own.startswith(RPC_DEVICE) else 0.0)
            if job == "run":
                arguments = await self._run_arguments(message, limit)
                answer, stderr = await self._cluster.ask(node, limit, job, own, *arguments)
            elif job == "sample":
                answer = await self._cluster.ask(node, limit, job, own, message["library"], message["number"])
            elif job == "forget":
                answer = await self._cluster.ask(node, limit, job, own, message["library"])
            else:
                answer = await self._cluster.ask(node, limit, job, own)
        except Exception as error:  # whatever it is, the session must not wait for an answer
            answer = {"lost": str(error) or type(error).__name__}
        self._send({"to": device, "id": message["id"], "answer": answer, "stderr": stderr})

    async def _run_arguments(self, message: Message, seconds: float) -> tuple[Message, bytes, str, list[Any]]:
        launch = message["launch"]
        library, module = self._libraries[launch["library"]]
        operator = launch["operator"]
        if operator not in self._arenas:
            with open(launch["arena"], "rb") as file:
                loop = asyncio.get_running_loop()
                self._arenas[operator] = loop.run_in_executor(None, self._cluster.put, file.read())
        try:
            return launch, library, module, [await asyncio.wait_for(asyncio.shield(self._arenas[operator]), seconds)]
        except Exception:
            self._arenas.pop(operator, None)
            raise


async def _main(descriptor: int, options: Message, cluster: type[Cluster]) -> None:
    sock = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_unix_connection(sock=sock, limit=1 << 24)
    try:
        await Gateway(options, reader, writer, cluster).serve()
    except Exception:
        traceback.print_exc()
    os._exit(0)  # Ray's own end takes seconds, and its calls may wait for ever; its cluster notices that this has ended


def main(cluster: type[Cluster] = Cluster) -> None:
    """`python -m slipstream.measure.fleet.gateway FD OWNER OPTIONS`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if die_with_parent(int(sys.argv[2])):
        asyncio.run(_main(int(sys.argv[1]), json.loads(sys.argv[3]), cluster))


if __name__ == "__main__":
    main()
