"""A gateway whose nodes are simulated, the first of them with a flaw: it computes wrongly, or it is slow.

`SIMULATED_FLEET` says which; see `benchmarks/fleet_nodes.py`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.fleet_nodes import SimulatedCluster
from slipstream.measure.fleet import gateway
from slipstream.measure.fleet.cluster import NodeHandle

FLAWED_SECONDS = 7e-3  # of a program on the first node


class FlawedCluster(SimulatedCluster):
    async def ask(self, handle: NodeHandle, seconds: float, method: str, *arguments: Any) -> Any:
        answer = await super().ask(handle, seconds, method, *arguments)
        is_first = handle.seen.id == f"{0:08x}"
        flaw = str(self._times["flaw"]) if is_first else ""
        probe = [2.0 if flaw == "slow" else 1.0] * 3
        if method == "probe":
            return {"probe": probe}
        if method != "run":
            return answer
        if flaw == "wrong":
            return {"failure": "wrong result", "message": "simulated", "probe": probe}, ""
        found, stderr = answer
        return {**found, "probe": probe, **({"samples": [FLAWED_SECONDS] * 6} if is_first else {})}, stderr


if __name__ == "__main__":
    gateway.main(FlawedCluster)
