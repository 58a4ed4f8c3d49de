"""What the fork server of measuring prepares, and what its workers do: build (and run), compute references, or hold a
remote device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from slipstream.processes.server import Role

PREPARE = f"{__name__}:prepare"


def prepare(options: dict[str, Any]) -> tuple[Mapping[str, Role], dict[str, Any]]:
    """Import TVM and compile once. `options` are the `target` and, for remote devices, `rpc`: see `devices/rpc.py`."""
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    began = time.monotonic()
    import_tvm_without_torch()
    facts = {"import_seconds": time.monotonic() - began}
    from slipstream.machine.cuda import CudaDevice
    from slipstream.machine.target import Target
    from slipstream.machine.tiles import allow_tiles
    from slipstream.measure import worker

    settings: dict[str, Any] = options["target"]
    settings.update((name, tuple(settings[name])) for name in ("features", "disabled"))
    if settings["gpu"] is not None:
        settings["gpu"] = CudaDevice(**settings["gpu"])
    target = Target(**settings)
    if target.has_tiles:
        allow_tiles()
    worker.warm_up(target)
    work = partial(worker.work, target)
    roles: dict[str, Role] = {"build": work, "reference": work}
    if "rpc" in options:
        from slipstream.measure.devices.rpc_session import RpcOptions, hold_device

        roles["hold device"] = partial(hold_device, RpcOptions(**options["rpc"]))
    return roles, facts
