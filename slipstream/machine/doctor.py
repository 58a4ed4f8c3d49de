"""What is installed, what the machine can do, and what is known to be broken, each with its remedy.

Versions come from the distributions' metadata and TVM is only imported by a child process, so that an
installation which crashes can still be examined.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from slipstream.machine.cpu import Gpu, cpu_model, gpus
from slipstream.machine.dot_product import dot_product_of, tile_operation_of
from slipstream.machine.hardware import describe_cpu, hardware_class
from slipstream.machine.target import Target, available_cores, resolve_target
from slipstream.processes.child import child_environment

_OLDEST_PYTHON = (3, 11)
_REPORTED = (
    "slipstream",
    "apache-tvm",
    "apache-tvm-ffi",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "numpy",
    "torch",
)
_ENVIRONMENT = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "TVM_LIBRARY_PATH")
_WHY_PINNED = {
    "apache-tvm": "Slipstream relies on this version's internals",
    "apache-tvm-ffi": "0.1.15 dies with a bus error on any JSON, 0.1.12 and 0.1.13 lack symbols",
}
# Distributions that install the same files, the one to keep first.
_EXCLUSIVE = (("onnxruntime", "onnxruntime-gpu"), ("xgboost-cpu", "xgboost"))

_PROBE_TIMEOUT_S = 120.0
_PROBE_MARK = "slipstream-probe "
_PROBE_STEPS = ("importing TVM", "serialising a TVM module", "compiling with TVM")


@dataclass(frozen=True)
class Problem:
    """Something that will not work, and the command or step that mends it."""

    what: str
    remedy: str


@dataclass(frozen=True)
class Machine:
    """`target` and `features` are unknown where TVM does not work; so is what was not to be measured.

    `integer_instruction` computes 8-bit dot products; empty where the CPU has none. `peak_half_flops` are of float16, 0
    where the CPU has no arithmetic in it; `peak_bfloat16_flops` are None then. `hardware_class` is what a fleet's nodes
    have to share for their measurements to be comparable.
    """

    cpu: str
    architecture: str
    cores: int
    load: float
    gpus: list[Gpu]
    target: str | None = None
    features: list[str] = field(default_factory=list)
    hardware_class: str | None = None
    peak_flops: float | None = None
    peak_half_flops: float | None = None
    peak_bfloat16_flops: float | None = None
    integer_instruction: str | None = None
    peak_integer_ops: float | None = None
    bandwidth: float | None = None
    nvrtc: str | None = None
    gpu_target: str | None = None
    gpu_flops: float | None = None
    gpu_bandwidth: float | None = None
    gpu_tensor_flops: float | None = None


@dataclass(frozen=True)
class Report:
    """`notes` are worth knowing, `problems` need mending; a version is None where nothing is installed."""

    versions: dict[str, str | None]
    machine: Machine
    environment: dict[str, str]
    notes: list[str]
    problems: list[Problem]


@dataclass(frozen=True)
class _Probe:
    """What the child process found out before it ended, and how it ended if not well."""

    found: dict[str, Any]
    failure: Problem | None


def examine(measure: bool = True) -> Report:
    """Examine this installation and machine; `measure` adds peak FLOP/s and bandwidth, some three seconds."""
    load = os.getloadavg()[0]
    problems = [problem for check in _CHECKS for problem in check()]
    probe = _probe(measure)
    if probe.failure is not None:
        problems.append(probe.failure)
    machine = Machine(
        cpu=cpu_model(),
        architecture=platform.machine(),
        cores=available_cores(),
        load=load,
        gpus=gpus(),
        **{name: value for name, value in probe.found.items() if name != "passed"},
    )
    problems += _check_gpu(machine)
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    return Report(_versions(), machine, environment, list(_notes(machine)), problems)


def _check_gpu(machine: Machine) -> Iterator[Problem]:
    """A GPU that cannot be used; without one there is nothing to mend."""
    if not machine.gpus or machine.target is None:
        return
    remedy = "pip install 'slipstream[cuda]', or set CUDA_HOME to a CUDA toolkit of version 13"
    if machine.gpu_target is None:
        yield Problem(
            "there is a GPU, and TVM cannot use it: the CUDA runtime or the driver's library is missing", remedy
        )
    elif machine.nvrtc is None:
        yield Problem("there is a GPU and nothing to compile for it: NVRTC is not found", remedy)


def _versions() -> dict[str, str | None]:
    return {"python": platform.python_version()} | {name: _version(name) for name in _REPORTED}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return _checkout().get("version") if name == "slipstream" else None


def _requirements() -> list[str]:
    """What Slipstream itself requires, without its extras."""
    try:
        declared = metadata.requires("slipstream") or []
    except metadata.PackageNotFoundError:
        declared = _checkout().get("dependencies", [])
    return [requirement for requirement in declared if "extra ==" not in requirement]


def _checkout() -> dict[str, Any]:
    """The project's own metadata where it runs from a checkout without being installed."""
    try:
        import tomllib
    except ModuleNotFoundError:  # a Python that is too old, which is reported
        return {}
    file = Path(__file__).parents[2] / "pyproject.toml"
    project: dict[str, Any] = tomllib.loads(file.read_text())["project"] if file.exists() else {}
    return project


def _check_python() -> Iterator[Problem]:
    if sys.version_info < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        yield Problem(
            f"Python {platform.python_version()} is too old: Slipstream needs {oldest} or newer",
            f"create a virtual environment with Python {oldest} and install Slipstream there",
        )


def _check_requirements() -> Iterator[Problem]:
    """Every required distribution is installed, and those pinned to one version in that version."""
    for requirement in _requirements():
        name, pin = _parse(requirement)
        installed = _version(name)
        if installed is None and not any(_version(other) for other in _alternatives(name)):
            yield Problem(f"{name} is required and not installed", f"pip install '{requirement}'")
        elif installed is not None and pin is not None and installed.partition("+")[0] != pin:
            why = f": {_WHY_PINNED[name]}" if name in _WHY_PINNED else ""
            yield Problem(f"{name} {installed} is installed, not {pin}{why}", f"pip install {name}=={pin}")


def _parse(requirement: str) -> tuple[str, str | None]:
    """(name, the one version it is pinned to or None)."""
    match = re.match(r"([\w.-]+)\s*(?:==\s*([^\s;,]+))?", requirement)
    assert match is not None, requirement
    return match[1], match[2]


def _alternatives(name: str) -> list[str]:
    """Other distributions of the same module."""
    return [other for group in _EXCLUSIVE if name in group for other in group if other != name]


def _check_exclusive() -> Iterator[Problem]:
    for group in _EXCLUSIVE:
        if all(_version(name) for name in group):
            yield Problem(
                f"{' and '.join(group)} are both installed and overwrite each other's files",
                f"pip uninstall -y {' '.join(group)} && pip install {group[0]}",
            )


def _check_linker() -> Iterator[Problem]:
    from slipstream.machine.linker import find_linker

    if find_linker() is None:
        yield Problem(
            "no linker: none of cc, gcc, clang and g++ is on PATH, and ziglang is not installed",
            "apt-get install gcc, or pip install 'slipstream[linker]'",
        )


_CHECKS = (_check_python, _check_requirements, _check_exclusive, _check_linker)


def _notes(machine: Machine) -> Iterator[str]:
    if machine.cores < 2:
        yield "only one core: whatever else runs here disturbs measurements"
    if machine.load > machine.cores:
        yield (f"the machine is busy (load {machine.load:.1f} on {machine.cores} cores): measurements will be noisy")


def _probe(measure: bool) -> _Probe:
    """Import and use TVM in a child process, which may crash or hang without harm."""
    command = [sys.executable, "-m", "slipstream.machine.doctor", *(["measure"] if measure else [])]
    try:
        done = subprocess.run(command, env=child_environment(), capture_output=True, timeout=_PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired as expired:
        found = _found(expired.stdout or b"")
        return _Probe(found, _failure(found, f"did not finish in {_PROBE_TIMEOUT_S:g} s"))
    found = _found(done.stdout)
    return _Probe(found, _failure(found, _ending(done)) if done.returncode != 0 else None)


def _found(output: bytes) -> dict[str, Any]:
    """All the child's findings together."""
    found: dict[str, Any] = {}
    for line in output.decode(errors="replace").splitlines():
        if line.startswith(_PROBE_MARK):
            found |= json.loads(line.removeprefix(_PROBE_MARK))
    return found


def _ending(done: subprocess.CompletedProcess[bytes]) -> str:
    """How a failed child ended, in words."""
    if done.returncode < 0:
        return f"was killed by {signal.Signals(-done.returncode).name}"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return f"failed: {lines[-1].strip()}" if lines else f"failed with exit code {done.returncode}"


def _failure(found: dict[str, Any], ending: str) -> Problem:
    pins = [requirement for requirement in _requirements() if requirement.startswith("apache-tvm")]
    return Problem(
        f"{_PROBE_STEPS[found.get('passed', 0)]} {ending}", f"pip install --force-reinstall {' '.join(pins)}"
    )


def _run_probe(measure: bool) -> None:
    """The child's side of `_probe`: report each finding as soon as it is made."""
    import tvm

    from slipstream.machine.speed import measure_bandwidth, measure_peak_flops, measure_peak_integer_ops

    _report(passed=1)
    tvm.ir.save_json(tvm.IRModule())
    _report(passed=2)
    target = resolve_target()
    _report(target=str(target), features=target.features, integer_instruction=_integer_instruction(target))
    _report(hardware_class=hardware_class(describe_cpu(target)))
    if measure:
        _report(peak_flops=measure_peak_flops(target))
        halves = replace(target, dtype="float16")
        _report(peak_half_flops=measure_peak_flops(halves) if target.has_arithmetic_in("float16") else 0.0)
        if target.has_arithmetic_in("bfloat16"):
            _report(peak_bfloat16_flops=measure_peak_flops(replace(target, dtype="bfloat16")))
        _report(peak_integer_ops=measure_peak_integer_ops(target))
        _report(bandwidth=measure_bandwidth(target))
    _probe_gpu(measure)


def _integer_instruction(target: Target) -> str:
    dot = dot_product_of(target)
    tiles = tile_operation_of(target, dot.data_type)
    return dot.name if tiles is None else "AMX"


def _probe_gpu(measure: bool) -> None:
    from slipstream.machine import cuda_speed, nvrtc
    from slipstream.machine.cuda import find_device
    from slipstream.machine.cuda_libraries import load_runtime

    _report(nvrtc=nvrtc.version())
    device = find_device()
    if device is None or not load_runtime():
        return
    processors = f"{device.multiprocessors} multiprocessors, {device.shared_bytes >> 10} KiB shared memory a block"
    _report(gpu_target=f"{device.name} ({device.architecture}), {processors}")
    if measure and nvrtc.is_available():
        with contextlib.suppress(cuda_speed.GpuSpeedError):
            speed = cuda_speed.measure_in_child()
            _report(gpu_flops=speed.flops, gpu_bandwidth=speed.bandwidth, gpu_tensor_flops=speed.tensor_flops)


def _report(**finding: Any) -> None:
    print(_PROBE_MARK + json.dumps(finding), flush=True)


if __name__ == "__main__":
    _run_probe(measure="measure" in sys.argv[1:])
