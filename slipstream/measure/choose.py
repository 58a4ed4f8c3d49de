"""Where to measure: on this machine's CPU, on its GPUs, on devices behind an RPC tracker, or on a fleet."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from slipstream.errors import TargetError
from slipstream.measure.config import EVALUATIONS, MeasureConfig

if TYPE_CHECKING:
    from slipstream.machine.target import Target
    from slipstream.measure.engine import Engine


def make_measurer(
    target: Target,
    references: Mapping[str, str],
    rpc: str | None = None,
    rpc_key: str | None = None,
    fleet: str | None = None,
    evaluation: str = "racing",
    model_weights: int = 0,
) -> Engine:
    """What measures programs of the operators in `references`: this machine, devices behind an RPC tracker, a fleet.

    `evaluation` is one of `EVALUATIONS`, `model_weights` the bytes of weights that a call of the model reads.
    """
    config = MeasureConfig(racing=EVALUATIONS[evaluation], model_weights=model_weights)
    check_gpu(target, rpc)
    if fleet is not None:
        return fleet_measurer(fleet, target, references, config)
    where = check_rpc(rpc, rpc_key)
    if where is not None and rpc_key is not None:
        return rpc_measurer(*where, rpc_key, target, references, config)
    return local_measurer(target, references, config)


@contextmanager
def starting_early(target: Target, measurer: str) -> Iterator[None]:
    """Let the processes that build for a `local` measurer start before there is a model to make it for."""
    from slipstream.measure.devices.cpu import with_models_pool
    from slipstream.measure.devices.gpu import WITHOUT_GPU
    from slipstream.measure.roles import PREPARE, options_for
    from slipstream.processes.fork_server import start_early

    if measurer != "local":
        yield
        return
    with start_early(PREPARE, options_for(target), with_models_pool() if target.gpu is None else WITHOUT_GPU):
        yield


def local_measurer(target: Target, references: Mapping[str, str], config: MeasureConfig | None = None) -> Engine:
    """Measures on this machine, whose GPU it is if the target has one."""
    make = cpu_measurer if target.gpu is None else gpu_measurer
    return make(target, references, config)


def cpu_measurer(target: Target, references: Mapping[str, str], config: MeasureConfig | None = None) -> Engine:
    """Measures on this machine's CPU; the cores are shared as docs/measuring.md says."""
    from slipstream.machine.target import available_cores
    from slipstream.measure.devices.cores import divide_this_machine
    from slipstream.measure.devices.cpu import CpuDevice
    from slipstream.measure.engine import Engine

    config = config or MeasureConfig()
    config = replace(config, workers=config.workers or available_cores())
    return Engine(target, references, CpuDevice(config, divide_this_machine(target.threads)), config)


def gpu_measurer(target: Target, references: Mapping[str, str], config: MeasureConfig | None = None) -> Engine:
    """Measures on this machine's GPU, or on several that are equal."""
    from slipstream.measure.devices.gpu import GpuDevices
    from slipstream.measure.engine import Engine

    config = config or MeasureConfig()
    return Engine(target, references, GpuDevices(config), config)


def rpc_measurer(
    host: str,
    port: int,
    key: str,
    target: Target,
    references: Mapping[str, str],
    config: MeasureConfig | None = None,
) -> Engine:
    """Measures on the devices registered under `key` with the tracker at `host`:`port`, which are what `target` says.

    Libraries are linked here, so devices must have this machine's architecture. TVM's RPC runs any code it is sent and
    encrypts nothing: use it on loopback or a network you trust (docs/remote-devices.md). Raises `DeviceError` if there
    is no tracker; servers may come and go.
    """
    from slipstream.machine.target import available_cores
    from slipstream.measure.devices.rpc import RpcDevices
    from slipstream.measure.engine import Engine

    if target.architecture != platform.machine():
        raise TargetError(f"cannot link for {target.architecture} on this {platform.machine()} machine")
    config = config or MeasureConfig()
    config = replace(config, workers=config.workers or available_cores())
    return Engine(target, references, RpcDevices(host, port, key, target.threads, config), config)


def fleet_measurer(
    address: str, target: Target, references: Mapping[str, str], config: MeasureConfig | None = None
) -> Engine:
    """Builds and measures on the nodes of the Ray cluster at `address`, measures on those of this machine's kind.

    A fleet runs the code it is sent: docs/fleet.md. Nodes may come and go.
    """
    from slipstream.measure.engine import Engine
    from slipstream.measure.fleet.devices import FleetDevices

    config = config or MeasureConfig()
    return Engine(target, references, FleetDevices(address, target, config), config)


def check_gpu(target: Target, rpc: str | None) -> None:
    """Programs for a GPU can be measured on this machine's, and nowhere else."""
    from slipstream.machine.cuda import this_device

    if target.gpu is None:
        return
    if rpc is not None:
        raise TargetError("programs for a GPU cannot be measured over RPC: leave --rpc out, or use --target cpu")
    this_device()


def check_fleet(fleet: str | None, target: Target) -> None:
    """Refuse a fleet in which nothing could be built or measured for `target`."""
    if fleet is None:
        return
    from slipstream.machine.hardware import class_of
    from slipstream.measure.fleet.look import check_nodes

    check_nodes(fleet, class_of(target))


def check_rpc(rpc: str | None, rpc_key: str | None) -> tuple[str, int] | None:
    """The tracker's host and port if there is one with such devices; None if this machine is meant.

    Quick and without TVM: a command calls it before anything that takes time.
    """
    if rpc is None and rpc_key is None:
        return None
    if rpc is None or rpc_key is None:
        given, missing = ("--rpc-key", "--rpc HOST:PORT") if rpc is None else ("--rpc", "--rpc-key NAME")
        raise TargetError(f"{given} needs {missing} with it: the tracker's address and the key of its devices")
    from slipstream.measure.devices.rpc_tracker import Tracker, parse_address

    host, port = parse_address(rpc)
    with Tracker(host, port) as tracker:
        keys = tracker.keys()
    if rpc_key not in keys:
        known = f"it has {', '.join(keys)}" if keys else "it has no devices at all"
        raise TargetError(
            f"the tracker at {rpc} has no device with the key {rpc_key!r} ({known}): start one with "
            f"'python -m slipstream.measure.rpc_server --tracker {rpc} --key {rpc_key}'"
        )
    return host, port
