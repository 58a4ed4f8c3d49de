"""A gateway whose nodes take a GPU's place with the CPU: they build for the CPU what is to run on a GPU.

Which node gets an actor, which devices it has and what is asked of them is as with GPUs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slipstream.machine.cuda import CudaDevice
from slipstream.machine.target import Target, resolve_target
from slipstream.measure.fleet import cluster, gateway
from slipstream.measure.fleet.node import Node

H200 = CudaDevice("NVIDIA H200", "sm_90", 232448, multiprocessors=132)


def gpu_target(gpu: CudaDevice = H200) -> Target:
    return replace(resolve_target("cpu"), gpu=gpu)


class CpuAsGpuNode(Node):
    def __init__(self, target: dict[str, Any], limits: dict[str, float], hardware: str) -> None:
        from slipstream.measure.devices import gpu_process
        from slipstream.measure.fleet import node
        from slipstream.processes.fork_server import ForkServer

        def server_for_cpu(prepare: str, options: dict[str, Any], *rest: Any) -> ForkServer:
            return ForkServer(prepare, {**options, "target": {**target, "gpu": None}}, *rest)

        gpu_process.WORKER = "tests.measure.cpu_as_gpu"
        node.ForkServer = server_for_cpu  # type: ignore[assignment,misc]
        super().__init__(target, limits, hardware)


if __name__ == "__main__":
    cluster.Node = CpuAsGpuNode  # type: ignore[misc]
    gateway.main()
