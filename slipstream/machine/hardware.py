"""What has to be equal for measurements to be comparable: as data, and as a short name for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from slipstream.machine.cpu import cpu_model
from slipstream.machine.cuda import CudaDevice, equal_gpus, find_devices
from slipstream.machine.target import Target, resolve_target


def describe_cpu(target: Target) -> dict[str, Any]:
    """This machine's CPU as `target` uses it."""
    return {
        "kind": "cpu",
        "architecture": target.architecture,
        "machine": cpu_model(),
        "cpu": target.cpu,
        "features": list(target.features),
        "threads": target.threads,
    }


def describe_gpu(device: CudaDevice) -> dict[str, Any]:
    """A GPU, without its host: the CPU builds and launches; what a kernel takes is the device's business alone."""
    limits = asdict(device)
    return {"kind": "cuda", "machine": limits.pop("name"), **limits}


def hardware_class(described: Mapping[str, Any]) -> str:
    """A short name of what `describe_cpu` or `describe_gpu` returns: the kind and a digest of the rest."""
    text = json.dumps(described, sort_keys=True)
    return f"{described['kind']}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def cpu_class(threads: int | None = None) -> str:
    """The class of this machine's CPU with all its cores, or with so many threads."""
    return hardware_class(describe_cpu(resolve_target("cpu", threads)))


def class_of(target: Target) -> str:
    """The class of what measures programs for `target`: such a GPU, or a CPU as this machine's."""
    return cpu_class() if target.gpu is None else hardware_class(describe_gpu(target.gpu))


def gpu_class() -> tuple[str, tuple[str, ...]]:
    """The class of this machine's first GPU, and all GPUs of it as CUDA_VISIBLE_DEVICES names them; empty if none."""
    devices = find_devices()
    return (hardware_class(describe_gpu(devices[0])), equal_gpus(devices)) if devices else ("", ())


def instruction_set(described: Mapping[str, Any]) -> str:
    """What decides which programs are fast, before caches and cores do: sm_90, avx512, avx2, neon, or the architecture
    of a CPU without vectors of these.
    """
    if described.get("kind") != "cpu":
        return str(described.get("architecture", ""))
    features = described.get("features", ())
    wide = next((name for name, feature in (("avx512", "avx512f"), ("avx2", "avx2")) if feature in features), "")
    architecture = str(described.get("architecture", ""))
    return wide or {"aarch64": "neon", "arm64": "neon"}.get(architecture, architecture)
