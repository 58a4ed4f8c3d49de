"""A session's side of a Ray cluster: which nodes there are, an actor on each, and what each has to do."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slipstream.measure.fleet.node import Node
from slipstream.measure.fleet.offer import SeenNode, seen_nodes
from slipstream.measure.fleet.ray_connection import CLIENT, NAMESPACE, connect

_LOOK_SECONDS = 1.0
# The head answers in milliseconds; when it has not for so long, that is reported and waited for further.
_ANSWER_SECONDS = 10.0
# A node whose actor failed is tried again after so long; one whose actor does not start in time counts as failed.
_AGAIN_SECONDS = 10.0
_START_SECONDS = 180.0


class NodeLostError(Exception):
    """A node failed while it had work."""


class NoNodeError(Exception):
    """For long there has been no node to give work to."""


@dataclass(eq=False)
class NodeHandle:
    """A node and this session's actor there. `free` of its builders have nothing to do; `devices` by their own names;
    `asked` are the answers that it owes.

    It is used from when it is `ready` until it is `lost`; `refused` if its actor said that it cannot be.
    """

    seen: SeenNode
    actor: Any
    free: int = 0
    devices: dict[str, str] = field(default_factory=dict)
    asked: set[asyncio.Future[Any]] = field(default_factory=set)
    ready: bool = False
    lost: bool = False
    refused: bool = False


class Cluster:
    """Nodes that come and go. Changes are reported to the session with `send`."""

    def __init__(self, options: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
        self._address: str = options["address"]
        self._hardware: str = options["hardware"]
        self._target: dict[str, Any] = options["target"]
        self._limits: dict[str, float] = options["limits"]
        self._patience: float = options["patience_seconds"]
        self._most_queueing: float = options["queue_seconds"]
        self._send = send
        self._nodes: dict[str, NodeHandle] = {}
        self._not_before: dict[str, float] = {}
        self._unusable: dict[str, str] = {}
        self._said: set[str] = set()
        self._waiting: deque[asyncio.Future[NodeHandle]] = deque()
        self._unavailable = ""
        self._tasks: set[asyncio.Task[None]] = set()

    # Nodes

    async def watch(self) -> None:
        """Connect, and from then on use the nodes that join and forget those that leave; returns if it cannot go on."""
        connected = False
        while True:
            try:
                if not connected:
                    await self._wait_for(connect, self._address)
                    connected = True
                listed = await self._wait_for(ray.nodes)
            except Exception as error:
                if connected and self._address.startswith(CLIENT):  # what it had there is gone
                    print(f"the connection to the cluster at {self._address} was lost", file=sys.stderr, flush=True)
                    return
                self._report(unavailable=_one_line(error))
            else:
                self._compare(seen_nodes(listed))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _wait_for(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What a call of Ray returns, however long that takes; that it takes long is reported."""
        answer = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
        await asyncio.wait([answer], timeout=_ANSWER_SECONDS)
        if not answer.done():
            self._report(unavailable=f"the head of the cluster at {self._address} does not answer")
        return await answer

    def _compare(self, seen: list[SeenNode]) -> None:
        for node in seen:
            if node.why_not:
                self._say(node.why_not)
            elif node.id not in self._nodes and self._is_wanted(node):
                self._start(node)
        living = {node.id for node in seen}
        for handle in [handle for handle in self._nodes.values() if handle.seen.id not in living]:
            self.lose(handle, "it has left the cluster")
        usable = [node for node in seen if not node.why_not and node.id not in self._unusable]
        unusable = [self._unusable[node.id] for node in seen if node.id in self._unusable]
        missing = ""
        if not any(node.devices.get(self._hardware) for node in usable):
            missing = f"no node of the fleet has a device of the class {self._hardware}"
        elif not any(node.builders for node in usable):
            missing = "no node of the fleet builds"
        if missing and unusable:
            missing += f" that can be used ({unusable[0]})"
        if missing != self._unavailable:
            self._report(unavailable=missing)

    def _is_wanted(self, node: SeenNode) -> bool:
        is_useful = node.builders or node.devices.get(self._hardware)
        return bool(is_useful) and time.monotonic() >= self._not_before.get(node.id, 0.0)

    def _start(self, seen: SeenNode) -> None:
        """An actor that holds all that the node offers; it waits while another session has it."""
        devices = seen.devices.get(self._hardware, 0)
        options = ray.remote(Node).options(
            num_cpus=seen.builders,
            resources=seen.resources(self._hardware),
            max_concurrency=seen.builders + devices + 4,
            scheduling_strategy=NodeAffinitySchedulingStrategy(seen.id, soft=False),
            name=f"{seen.id[:12]}-{time.time_ns()}",
            namespace=NAMESPACE,
        )
        handle = NodeHandle(seen, options.remote(self._target, self._limits, self._hardware if devices else ""))
        self._nodes[seen.id] = handle
        self._begin(self._wait_until_ready(handle))

    async def _wait_until_ready(self, handle: NodeHandle) -> None:
        try:
            devices: list[str] = await self.ask(handle, _START_SECONDS, "devices")
        except NodeLostError:
            return
        handle.devices = {f"{handle.seen.address}/{handle.seen.id[:6]}/{name}": name for name in devices}
        handle.ready, handle.free = True, handle.seen.builders
        self._unusable.pop(handle.seen.id, None)
        self._report()
        self._hand_out()

    def lose(self, handle: NodeHandle, why: str) -> None:
        """Use a node no more; if it is still there, it gets a new actor after a while."""
        if handle.lost:
            return
        handle.lost, handle.free = True, 0
        self._nodes.pop(handle.seen.id, None)
        self._not_before[handle.seen.id] = time.monotonic() + _AGAIN_SECONDS
        what = "failed" if handle.ready else "could not be used"
        text = f"node {handle.seen.address} ({handle.seen.id[:6]}) {what}: {why}"
        if handle.ready:
            self._send({"kind": "say", "text": text})
        else:
            self._say(text)  # it is tried again and again
            if handle.refused:
                self._unusable[handle.seen.id] = why
        for answer in handle.asked:
            answer.cancel()
        asyncio.get_running_loop().run_in_executor(None, _kill, handle.actor)  # it waits for the head
        self._report()

    def _report(self, unavailable: str | None = None) -> None:
        """What the session can count on now."""
        if unavailable is not None:
            self._unavailable = unavailable
        ready = [handle for handle in self._nodes.values() if handle.ready]
        self._send(
            {
                "kind": "fleet",
                "builders": sum(handle.seen.builders for handle in ready),
                "devices": [name for handle in ready for name in handle.devices],
                "unavailable": self._unavailable,
            }
        )

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._send({"kind": "say", "text": text})

    # Work

    async def ask(self, handle: NodeHandle, seconds: float, method: str, *arguments: Any) -> Any:
        """What the node's actor answers; `NodeLostError` if it fails or takes longer than `seconds`."""
        if handle.lost:
            raise NodeLostError(f"node {handle.seen.address} has failed")
        answer = asyncio.ensure_future(getattr(handle.actor, method).remote(*arguments))
        handle.asked.add(answer)
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            why = f"it did not answer for {seconds:.0f} s"
        except asyncio.CancelledError:
            if not handle.lost or (task := asyncio.current_task()) is None or task.cancelling():
                raise
            why = "it has failed"
        except Exception as error:
            why, handle.refused = _one_line(error), True
        finally:
            handle.asked.discard(answer)
        self.lose(handle, why)
        raise NodeLostError(f"node {handle.seen.address}: {why}")

    def tell(self, handle: NodeHandle, method: str, *arguments: Any) -> None:
        """The same without waiting for an answer."""
        if not handle.lost:
            getattr(handle.actor, method).remote(*arguments)

    def put(self, data: bytes) -> Any:
        """Ray's reference to data that nodes fetch when they need them."""
        return ray.put(data)

    def device(self, name: str) -> tuple[NodeHandle, str]:
        """The node that has a device, and the device's name there."""
        for handle in self._nodes.values():
            if name in handle.devices:
                return handle, handle.devices[name]
        raise NodeLostError(f"the device {name} has left the fleet")

    async def take_builder(self) -> NodeHandle:
        """A node with an idle builder, which is no longer idle; `NoNodeError` if for long there is no node."""
        if (idle := self.idle_builder()) is not None:
            return idle
        began = time.monotonic()
        while True:
            waiting: asyncio.Future[NodeHandle] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                return await asyncio.wait_for(waiting, self._patience)
            except TimeoutError:
                if any(handle.ready and handle.seen.builders for handle in self._nodes.values()):
                    continue
                waited = time.monotonic() - began
                if self._unavailable or waited > self._most_queueing:
                    why = self._unavailable or "no node of the fleet was free"
                    raise NoNodeError(f"{why}, for {waited:.0f} s") from None
            except asyncio.CancelledError:
                if waiting.done() and not waiting.cancelled():
                    self.release(waiting.result())
                raise

    def idle_builder(self, besides: Collection[NodeHandle] = ()) -> NodeHandle | None:
        """The same if there is one now, not on the nodes `besides`."""
        idle = [handle for handle in self._nodes.values() if handle.free > 0 and handle not in besides]
        found = max(idle, key=lambda handle: handle.free / handle.seen.builders, default=None)
        if found is not None:
            found.free -= 1
        return found

    def release(self, handle: NodeHandle) -> None:
        """A builder of the node has nothing to do any more."""
        if not handle.lost:
            handle.free += 1
            self._hand_out()

    def _hand_out(self) -> None:
        """Give idle builders to those who wait."""
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
            elif (idle := self.idle_builder()) is not None:
                self._waiting.popleft().set_result(idle)
            else:
                return

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _kill(actor: Any) -> None:
    with contextlib.suppress(Exception):  # whatever it is, the node is used no more
        ray.kill(actor)


def _one_line(error: BaseException) -> str:
    """What Ray says of a failed call is long, and ends with what was raised there."""
    if isinstance(error, ActorUnavailableError):
        return "the connection broke"
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return (lines[-1] if isinstance(error, RayError) else lines[0]) if lines else type(error).__name__
