"""Nodes that build and run nothing, behind the real gateway: simulated ones, or Ray's actors that answer at once.

`benchmarks.fleet` starts it in place of the gateway. `SIMULATED_FLEET` says what the fleet has, and how long builds and
runs take; with `ray` the nodes are those of a real cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
from math import ceil
from typing import Any
from zlib import crc32

from slipstream.measure.fleet import cluster, gateway
from slipstream.measure.fleet.cluster import Cluster, NodeHandle
from slipstream.measure.fleet.node import CPU
from slipstream.measure.fleet.offer import SeenNode

ENVIRONMENT = "SIMULATED_FLEET"
_CORES = 16


def built(name: str, requests: list[dict[str, Any]], seconds: float) -> tuple[dict[str, Any], bytes, str]:
    """The answer to a build's last request."""
    answer = {"seconds": seconds, "elapsed_seconds": seconds}
    if "lower" in requests[-1]:
        return {**answer, "fingerprint": f"{crc32(requests[-1]['lower']['module'].encode())}-{name}"}, b"", ""
    return {**answer, "load_seconds": 0.0}, bytes(50_000), ""


def measured(launch: dict[str, Any], times: dict[str, float]) -> tuple[dict[str, Any], str]:
    """The answer to a run; how fast a program is says its name."""
    speed = 1e-3 * (1 + crc32(launch["library"].encode()) / 2**32)
    answer = {"samples": [speed] * 6, "stopped_early": False, "waited_seconds": 0.0, "probe": []}
    return {**answer, "run_seconds": times["run"], "allocate_seconds": times["allocate"]}, ""


class InstantNode:
    """An actor in place of `Node`."""

    def __init__(self, target: dict[str, Any], limits: dict[str, float], hardware: str) -> None:
        self._devices = [str(number) for number in range(8)] if hardware else []

    def devices(self) -> list[str]:
        return self._devices

    def build(self, name: str, requests: list[dict[str, Any]]) -> tuple[dict[str, Any], bytes, str]:
        return built(name, requests, 0.0)

    def end(self, name: str) -> None:
        """Nothing is under way."""

    def run(
        self, device: str, launch: dict[str, Any], library: bytes, module: str, arena: list[Any]
    ) -> tuple[dict[str, Any], str]:
        return measured(launch, {"run": 0.0, "allocate": 0.0})

    def sample(self, device: str, library: str, number: int) -> dict[str, Any]:
        return {"samples": [1e-3]}

    def forget(self, device: str, library: str) -> dict[str, Any]:
        return {}


class SimulatedCluster(Cluster):
    """Nodes of sixteen builders at most, of which the first have a device each. All answer after the time recorded."""

    async def watch(self) -> None:
        self._times = json.loads(os.environ[ENVIRONMENT])
        builders, devices = self._times["builders"], self._times["devices"]
        count = max(devices, ceil(builders / _CORES))
        for number in range(count):
            own = builders // count + (number < builders % count)
            kinds = {self._hardware: 1} if number < devices else {}
            seen = SeenNode(f"{number:08x}", f"10.0.{number // 256}.{number % 256}", own, kinds)
            named = {f"{seen.address}/{seen.id}/{CPU}": CPU} if kinds else {}
            self._nodes[seen.id] = NodeHandle(seen, None, own, named, ready=True)
        self._report(unavailable="")
        self._hand_out()
        await asyncio.Event().wait()

    async def ask(self, handle: NodeHandle, seconds: float, method: str, *arguments: Any) -> Any:
        if method == "build":
            await asyncio.sleep(self._times["build"] / 2)  # of which there are two
            return built(*arguments, self._times["build"] / 2)
        if method == "run":
            await asyncio.sleep(self._times["run"] + self._times["allocate"])
            return measured(arguments[1], self._times)
        await asyncio.sleep(self._times["run"] / 10)
        return {"samples": [1e-3]}

    def tell(self, handle: NodeHandle, method: str, *arguments: Any) -> None:
        """Nothing is there to be told."""

    def put(self, data: bytes) -> Any:
        return None


def main() -> None:
    if "ray" not in json.loads(os.environ[ENVIRONMENT]):
        gateway.main(SimulatedCluster)
        return
    cluster.Node = InstantNode  # type: ignore[misc,assignment]
    gateway.main()


if __name__ == "__main__":
    main()
