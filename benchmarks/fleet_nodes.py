"""Simulated nodes behind the real gateway: builds and runs take recorded times, and nothing is built or run.

`benchmarks.fleet` starts it in place of the gateway that has Ray. `SIMULATED_FLEET` says what the fleet has.
"""

from __future__ import annotations

import asyncio
import json
import os
from math import ceil
from typing import Any
from zlib import crc32

from slipstream.measure.fleet import gateway
from slipstream.measure.fleet.cluster import Cluster, NodeHandle
from slipstream.measure.fleet.node import CPU
from slipstream.measure.fleet.offer import SeenNode

ENVIRONMENT = "SIMULATED_FLEET"
_CORES = 16


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
            return await self._build(*arguments)
        if method == "run":
            taken, launch = self._times["run"], arguments[1]
            await asyncio.sleep(taken + self._times["allocate"])
            # Some program is the fastest: a few in a hundred improve on the best.
            speed = 1e-3 * (1 + crc32(launch["library"].encode()) / 2**32)
            answer = {"samples": [speed] * 6, "stopped_early": False, "waited_seconds": 0.0, "probe": []}
            return {**answer, "run_seconds": taken, "allocate_seconds": self._times["allocate"]}, ""
        await asyncio.sleep(self._times["run"] / 10)
        return {"samples": [1e-3]}

    async def _build(self, name: str, requests: list[dict[str, Any]]) -> tuple[dict[str, Any], bytes, str]:
        part = self._times["build"] / 2
        await asyncio.sleep(part)
        answer = {"seconds": part, "elapsed_seconds": part}
        if "lower" in requests[-1]:
            return {**answer, "fingerprint": f"{crc32(requests[-1]['lower']['module'].encode())}-{name}"}, b"", ""
        return {**answer, "load_seconds": 0.0}, bytes(50_000), ""

    def tell(self, handle: NodeHandle, method: str, *arguments: Any) -> None:
        """Nothing is there to be told."""

    def put(self, data: bytes) -> Any:
        return None


if __name__ == "__main__":
    gateway.main(SimulatedCluster)
