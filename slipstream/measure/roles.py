"""What the fork server of measuring prepares, and what its workers do: build (and run), compute references, or hold a
remote device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from slipstream.processes.server import Role

if TYPE_CHECKING:
    from slipstream.machine.target import Target

PREPARE = f"{__name__}:prepare"


def options_for(target: Target) -> dict[str, Any]:
    """What `prepare` needs to know of a target."""
    return {"target": asdict(target)}


def prepare(options: dict[str, Any]) -> tuple[Mapping[str, Role], dict[str, Any]]:
    """Import TVM and compile once. `options` are the `target` and, for remote devices, `rpc`: see `devices/rpc.py`."""
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    began = time.monotonic()
    import_tvm_without_torch()
    facts = {"import_seconds": time.monotonic() - began}
    from slipstream.machine.tiles import allow_tiles
    from slipstream.measure import worker
    from slipstream.measure.timing.in_model import Preparing

    target = target_of(options["target"])
    if target.has_tiles:
        allow_tiles()
    worker.warm_up(target)
    # What prepares runs on a CPU; a GPU's programs run in another process.
    work = partial(worker.work, target, Preparing(target) if target.gpu is None else None)
    roles: dict[str, Role] = {"build": work, "reference": work}
    if "rpc" in options:
        from slipstream.measure.devices.rpc_session import RpcOptions, hold_device

        roles["hold device"] = partial(hold_device, RpcOptions(**options["rpc"]))
    return roles, facts


def target_of(settings: Mapping[str, Any]) -> Target:
    """The target that `asdict` made these settings of, which were JSON since."""
    from slipstream.machine.cuda import CudaDevice
    from slipstream.machine.target import Target

    gpu = None if settings["gpu"] is None else CudaDevice(**settings["gpu"])
    words = {name: tuple(settings[name]) for name in ("features", "disabled")}
    return Target(**{**settings, **words, "gpu": gpu})
