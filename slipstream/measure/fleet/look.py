"""What a fleet has: its nodes, what each offers, and what sessions do there. Ray stays in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from slipstream.errors import MissingDependencyError, SlipstreamError
from slipstream.measure.fleet.offer import SeenNode
from slipstream.measure.fleet.ray_connection import NAMESPACE, FleetError, connect, ray_environment
from slipstream.processes.child import child_environment

_LOOK_SECONDS = 60.0
_ANSWER_SECONDS = 3.0
_MARK = "slipstream-fleet "


@dataclass(frozen=True)
class NodeView:
    """A node, and what the session that has it (if any) has done there: `Node.stats`."""

    node: SeenNode
    stats: dict[str, float] = field(default_factory=dict)


def look(address: str, *, stats: bool = False) -> list[NodeView]:
    """The nodes of the fleet at `address`; `FleetError` if there is no cluster."""
    require_ray()
    command = [sys.executable, "-m", __name__, address, *(["stats"] if stats else [])]
    environment = child_environment(**ray_environment())
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        raise FleetError(f"the Ray cluster at {address} did not answer for {_LOOK_SECONDS:.0f} s") from None
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            found = json.loads(line.removeprefix(_MARK))
            if "error" in found:
                raise FleetError(found["error"])
            return [NodeView(SeenNode(**row["node"]), row["stats"]) for row in found["nodes"]]
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    raise FleetError(f"looking at the Ray cluster at {address} failed: {last}")


def require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise MissingDependencyError("a fleet needs Ray, which is not installed: pip install 'slipstream[fleet]'")


def check_nodes(address: str, hardware: str) -> None:
    """Refuse a fleet that builds nothing or has no device of the class `hardware`, and say why."""
    nodes = [view.node for view in look(address)]
    usable = [node for node in nodes if not node.why_not]
    wrong = "; ".join(node.why_not for node in nodes if node.why_not)
    if not nodes:
        what = f"the cluster at {address} has no node of ours: 'slipstream fleet join' on each"
    elif not any(node.devices.get(hardware) for node in usable):
        have = ", ".join(sorted({name for node in usable for name in node.devices})) or "none"
        what = f"no node of the fleet at {address} has a device like this machine's, class {hardware} (it has {have})"
        what += "; " + (wrong or "run 'slipstream fleet join' on machines of that class")
    elif not any(node.builders for node in usable):
        what = f"no node of the fleet at {address} builds: join with --builders"
    else:
        return
    raise FleetError(what)


def _see(address: str, stats: bool) -> dict[str, Any]:
    import ray

    from slipstream.measure.fleet.offer import seen_nodes

    connect(address)
    nodes = seen_nodes(ray.nodes())
    counted = _stats(nodes) if stats else {}
    return {"nodes": [{"node": asdict(node), "stats": counted.get(node.id, {})} for node in nodes]}


def _stats(nodes: list[SeenNode]) -> dict[str, dict[str, float]]:
    """What the actors of sessions have counted; an actor that does not answer is left out."""
    import ray

    asked = {}
    for row in ray.util.list_named_actors(all_namespaces=True):
        for node in nodes:
            if row["namespace"] == NAMESPACE and row["name"].startswith(node.id[:12]):
                asked[ray.get_actor(row["name"], namespace=NAMESPACE).stats.remote()] = node.id
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_SECONDS) if asked else ([], [])
    return {asked[one]: ray.get(one) for one in done}


def main() -> None:
    """`python -m slipstream.measure.fleet.look ADDRESS [stats]`, the other side of `look`."""
    try:
        found = _see(sys.argv[1], "stats" in sys.argv[2:])
    except SlipstreamError as error:
        found = {"error": str(error)}
    print(_MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
