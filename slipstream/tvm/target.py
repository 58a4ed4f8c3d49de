"""TVM's targets as Slipstream's: what is measured has to be the code that the user's target gives."""

from __future__ import annotations

import json
import platform
from typing import Any

import tvm

from slipstream.errors import TargetError
from slipstream.machine.target import Target, available_cores, resolve_target

# What LLVM generates code for where a target names no CPU.
_BASELINES = {"x86_64": "x86-64"}


def this_cpu(threads: int | None = None) -> Any:
    """TVM's target for this machine with all its vector extensions, which `{"kind": "llvm"}` leaves out."""
    return resolve_target("cpu", threads).tvm


def target_spec(target: Any) -> tuple[str, int]:
    """What `resolve_target` takes for a target of TVM, an object, text or dictionary: its name, and threads."""
    try:
        given = target if isinstance(target, tvm.target.Target) else tvm.target.Target(target)
        config = json.loads(str(given))
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise TargetError(f"TVM has no target {target!r} ({said}): give slipstream.tvm.this_cpu()") from error
    if config["kind"] == "cuda":
        return "cuda", available_cores()
    if config["kind"] != "llvm":
        raise TargetError(f"{config['kind']} targets cannot be tuned: give one of kind llvm or cuda")
    architecture = str(config.get("mtriple", platform.machine())).partition("-")[0]
    if architecture.replace("arm64", "aarch64") != platform.machine():
        raise TargetError(f"programs for {architecture} cannot be measured on this {platform.machine()} machine")
    threads = int(config.get("num-cores", 0)) or available_cores()
    cpu = str(config.get("mcpu") or _BASELINES.get(platform.machine(), "generic"))
    here = resolve_target("cpu", threads)
    spec = "cpu" if cpu == here.cpu else f"cpu:{cpu}"
    resolved = resolve_target(spec, threads)
    allowed = {f"-{name}" for name in resolved.disabled}
    if others := sorted(set(map(str, config.get("mattr", ()))) - allowed):
        raise TargetError(
            f"mattr of the target has {others[0]!r}: name a CPU by mcpu, or give slipstream.tvm.this_cpu()"
        )
    return spec, threads


def resolve(target: Any) -> Target:
    """Slipstream's target for one of TVM."""
    return resolve_target(*target_spec(target))
