"""What a node offers, written as the resources and labels that Ray shows of it, and whether a session can use it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from slipstream.version import VERSION

# In the environment of a node: its GPUs, since Ray hides them from an actor that asks for none.
GPUS = "SLIPSTREAM_GPUS"
# And of one near RPC devices: the tracker's HOST:PORT and their key.
RPC = "SLIPSTREAM_RPC"
# Every node of ours has one: a session that uses the node holds it.
NODE = "slipstream"
_CLASS = "slipstream-"
_LABEL = "slipstream-"
_NAMES = {"version": "Slipstream", "tvm": "TVM", "python": "Python", "architecture": "architecture"}


def versions() -> dict[str, str]:
    """What has to be equal on all nodes for one to build or run what another sends."""
    return {
        "version": VERSION,
        "tvm": metadata.version("apache-tvm"),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "architecture": platform.machine(),
    }


@dataclass(frozen=True)
class Offer:
    """`builders` programs are built there at a time; `devices` are counted by their hardware class.

    They are the node's own, its GPUs as `gpus` names them, or behind an RPC tracker: `rpc` is its HOST:PORT and a key.
    """

    builders: int
    devices: Mapping[str, int]
    gpus: str = ""
    rpc: str = ""

    def resources(self) -> dict[str, int]:
        """Beside Ray's own CPUs, of which there is one for each builder."""
        return {NODE: 1, **{f"{_CLASS}{name}": count for name, count in self.devices.items()}}

    def labels(self) -> dict[str, str]:
        return {f"{_LABEL}{name}": value for name, value in versions().items()}

    def environment(self) -> dict[str, str]:
        """What a session's actor there has to find."""
        return {GPUS: self.gpus, RPC: self.rpc}


@dataclass(frozen=True)
class SeenNode:
    """A node as Ray describes it, under the `name` it was started with. `why_not` says why a session cannot use it;
    empty if it can.
    """

    id: str
    address: str
    builders: int
    devices: Mapping[str, int]
    why_not: str = ""
    name: str = ""

    def resources(self, hardware: str) -> dict[str, int]:
        """What a session that measures on the class `hardware` holds of it."""
        devices = self.devices.get(hardware, 0)
        return {NODE: 1} | ({f"{_CLASS}{hardware}": devices} if devices else {})


def seen_nodes(listed: Iterable[Mapping[str, Any]]) -> list[SeenNode]:
    """The living nodes that have joined, from what `ray.nodes()` lists."""
    ours = versions()
    found = []
    for node in listed:
        resources, labels = node["Resources"], node.get("Labels", {})
        if not node["Alive"] or NODE not in resources:
            continue
        devices = {
            name.removeprefix(_CLASS): int(count) for name, count in resources.items() if name.startswith(_CLASS)
        }
        theirs = {name: labels.get(f"{_LABEL}{name}", "unknown") for name in ours}
        address, builders = node["NodeManagerAddress"], int(resources.get("CPU", 0))
        why_not = _difference(address, theirs, ours)
        found.append(SeenNode(node["NodeID"], address, builders, devices, why_not, node.get("NodeName", "")))
    return found


def _difference(address: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    different = [name for name in ours if theirs[name] != ours[name]]
    if not different:
        return ""
    there, here = (", ".join(f"{_NAMES[name]} {values[name]}" for name in different) for values in (theirs, ours))
    return f"node {address} has {there}, this machine has {here}: install the same there and join again"


def offer_of_this_machine(builders: int | None = None, *, measures: bool = True) -> Offer:
    """All its cores for building, unless `builders` are given, and its CPU and equal GPUs for measuring."""
    from slipstream.machine.hardware import cpu_class, gpu_class
    from slipstream.machine.target import available_cores

    devices: dict[str, int] = {}
    name, gpus = gpu_class() if measures else ("", ())
    if measures:
        devices = {cpu_class(): 1} | ({name: len(gpus)} if gpus else {})
    return Offer(available_cores() if builders is None else builders, devices, ",".join(gpus))


def offer_near_rpc(rpc: str, key: str, builders: int | None = None) -> Offer:
    """The same with the devices registered under `key` with the tracker at `rpc` in place of its own; `DeviceError` if
    they do not say what hardware they are.
    """
    from slipstream.machine.target import available_cores
    from slipstream.measure.devices.rpc_tracker import Tracker, parse_address
    from slipstream.measure.fleet.rpc_hardware import class_of_server

    where = parse_address(rpc)
    with Tracker(*where) as tracker:
        count = len(tracker.servers(key))
    devices = {class_of_server(*where, key): count}
    return Offer(available_cores() if builders is None else builders, devices, rpc=f"{rpc} {key}")
