"""What a model is compiled for: this CPU, a named older one of the same architecture, or an NVIDIA GPU."""

from __future__ import annotations

import difflib
import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.errors import TargetError
from slipstream.machine.cuda import CudaDevice, find_device, from_target_json, parse_device
from slipstream.machine.processor_time import processor_time
from slipstream.machine.tiles import allow_tiles

# LLVM's name of a feature -> the word in /proc/cpuinfo, where they are not the same but for punctuation.
_CPUINFO_NAMES = {"dotprod": "asimddp", "fullfp16": "asimdhp", "neon": "asimd"}
_TILES = "amx_tile"
DTYPES = ("float32", "float16", "bfloat16", "tf32")
# Types that need tensor cores of this architecture or a later one.
_AMPERE = 80
# The feature of each architecture with which vectors of a short type are multiplied and added.
_SHORT_ARITHMETIC = {
    "float16": {"aarch64": "fullfp16", "x86_64": "avx512fp16"},
    "bfloat16": {"x86_64": "avx512bf16"},
}
_VECTOR_FEATURES = ("avx", "amx", "fma", "f16c", "sve", "dotprod", "fullfp16", "bf16", "i8mm", "sme")


@dataclass(frozen=True)
class Target:
    """A CPU to generate code for. `features` are the vector extensions that code may use.

    With a `gpu` the operators run there, and the CPU is its host: it folds constants and launches kernels. `dtype` is
    what a float32 model's products are computed in, and tensors are stored in between operators (tf32: in float32).
    """

    architecture: str
    cpu: str
    features: tuple[str, ...]
    disabled: tuple[str, ...]
    threads: int
    gpu: CudaDevice | None = None
    dtype: str = "float32"

    @property
    def is_half(self) -> bool:
        """Whether tensors have half the bytes of the model's."""
        return self.dtype in ("float16", "bfloat16")

    @property
    def uses_tensor_cores(self) -> bool:
        """Whether products are computed on a GPU, in a type with fewer digits than float32."""
        return self.gpu is not None and self.dtype != "float32"

    def has_arithmetic_in(self, dtype: str) -> bool:
        """Whether the CPU multiplies and adds vectors of float16, or of bfloat16."""
        return any(feature in self.features for feature in _SHORT_ARITHMETIC[dtype].values())

    @property
    def has_tiles(self) -> bool:
        """Whether the CPU multiplies tiles (AMX)."""
        return self.gpu is None and "amx-tile" in self.features

    @property
    def rounding(self) -> float:
        """How much products may be wrong by, relative to them, because their factors are rounded; 0 for float32."""
        return {"float16": 2.0**-10, "bfloat16": 2.0**-7, "tf32": 2.0**-10}.get(self.dtype, 0.0)

    @property
    def has_triton(self) -> bool:
        """Whether Triton can generate programs for this target: it is installed, and the GPU is one it is for."""
        return self.gpu is not None and self.gpu.capability >= _AMPERE and find_spec("triton") is not None

    @property
    def host(self) -> Target:
        """The CPU alone."""
        return self if self.gpu is None else replace(self, gpu=None, dtype="float32")

    @cached_property
    def tvm(self) -> Any:
        """The same as a TVM target."""
        import tvm

        if self.gpu is not None:
            shared = min(self.gpu.shared_bytes, STATIC_SHARED_BYTES)
            return tvm.target.Target(_cuda_config(self.gpu, shared), host=self.host.tvm)
        config: dict[str, Any] = {
            "kind": "llvm",
            "mtriple": f"{self.architecture}-linux-gnu",
            "mcpu": self.cpu,
            "num-cores": self.threads,
        }
        if self.disabled:
            config["mattr"] = [f"-{name}" for name in self.disabled]
        return tvm.target.Target(config)

    @cached_property
    def tvm_for_search(self) -> Any:
        """The same for a search: programs for tensor cores ask for shared memory at launch and may have all of it."""
        import tvm

        if self.gpu is None or self.dtype != "float16":
            return self.tvm
        return tvm.target.Target(_cuda_config(self.gpu, self.gpu.shared_bytes), host=self.host.tvm)

    @property
    def vector_lanes(self) -> int:
        """32-bit lanes of one vector register."""
        if "avx512f" in self.features:
            return 16
        return 8 if "avx2" in self.features else 4

    @property
    def vector_elements(self) -> int:
        """Elements in one vector register of what is computed: halves, or float32 (bfloat16 is for storage)."""
        return self.vector_lanes * (2 if self.dtype == "float16" and self.gpu is None else 1)

    @property
    def vector_registers(self) -> int:
        """How many vector registers there are."""
        return 16 if self.architecture == "x86_64" and "avx512f" not in self.features else 32

    def __str__(self) -> str:
        if self.gpu is not None:
            dtype = f", {self.dtype}" if self.uses_tensor_cores else ""
            return f"{self.gpu.name} ({self.gpu.architecture}){dtype}"
        dtype = f", {self.dtype}" if self.dtype != "float32" else ""
        return f"{self.cpu} ({self.architecture}), {self.threads} threads{dtype}"


def resolve_target(spec: str = "cpu", threads: int | None = None, dtype: str = "float32") -> Target:
    """What `--target`, `--threads` and `--dtype` say.

    `cpu` is this machine; `cpu:NAME` is LLVM's CPU of that name, for deploying to an older machine. `cuda` is this
    machine's GPU, `cuda:sm_90` any of that architecture, `auto` the GPU if there is one and else the CPU. Text in
    braces is a TVM target of kind cuda as JSON.
    """
    if threads is None:
        threads = available_cores()
    elif threads < 1:
        raise TargetError(f"a target needs at least one thread, not {threads}")
    return _in_type(_resolve(spec, threads), dtype)


def _in_type(target: Target, dtype: str) -> Target:
    if dtype not in (*DTYPES, "int8"):
        raise TargetError(f"there is no dtype {dtype!r} to compute in: choose from {', '.join(DTYPES)}")
    if dtype == "int8":
        raise TargetError("a model is quantised before it is compiled: 'slipstream quantize', or --dtype int8 there")
    if dtype == "tf32" and target.gpu is None:
        raise TargetError(
            "tf32 is for GPUs: on a CPU leave --dtype out for float32, or choose float16, bfloat16 or int8"
        )
    if target.gpu is None and dtype in _SHORT_ARITHMETIC and not target.has_arithmetic_in(dtype):
        needed = _SHORT_ARITHMETIC[dtype].get(target.architecture, "instructions that are not used here")
        raise TargetError(
            f"{target.cpu} ({target.architecture}) has no {dtype} arithmetic, which needs {needed}: "
            "leave --dtype out to compute in float32, or choose int8"
        )
    if dtype in ("bfloat16", "tf32") and target.gpu is not None and target.gpu.capability < _AMPERE:
        raise TargetError(
            f"{target.gpu.name} ({target.gpu.architecture}) has no {dtype}, which needs sm_80 or later: "
            "use --dtype float16 or leave it out"
        )
    return target if dtype == target.dtype else replace(target, dtype=dtype)


def _resolve(spec: str, threads: int) -> Target:
    kind, _, name = spec.partition(":")
    if spec.lstrip().startswith("{"):
        return replace(_cpu_target("", threads), gpu=_read_json(spec))
    if kind == "cuda":
        return replace(_cpu_target("", threads), gpu=parse_device(name))
    if spec == "auto":
        return replace(_cpu_target("", threads), gpu=find_device())
    if kind != "cpu":
        raise TargetError(
            f"unknown target {spec!r}: use 'cpu' for this machine, 'cpu:NAME' for another CPU, "
            "'cuda' for this machine's GPU or 'auto'"
        )
    return _cpu_target(name, threads)


def _read_json(spec: str) -> CudaDevice:
    try:
        config = json.loads(spec)
    except ValueError as error:
        raise TargetError(f"the target {spec!r} is no JSON ({error})") from error
    if config.get("kind") != "cuda":
        raise TargetError(f"a target given as JSON has to be of kind 'cuda', not {config.get('kind')!r}")
    return from_target_json(config)


# Of shared memory that a program declares statically, as default ones do, CUDA allows this much on every device.
STATIC_SHARED_BYTES = 48 * 1024


def _cuda_config(gpu: CudaDevice, shared_bytes: int) -> dict[str, Any]:
    return {
        "kind": "cuda",
        "arch": gpu.architecture,
        "max_threads_per_block": gpu.threads,
        "max_num_threads": gpu.threads,
        "max_shared_memory_per_block": shared_bytes,
        "registers_per_block": gpu.registers,
        "thread_warp_size": gpu.warp,
    }


@cache
def _cpu_target(name: str, threads: int) -> Target:
    from tvm.target import Target as TvmTarget
    from tvm.target import codegen

    architecture = platform.machine()
    bare = TvmTarget({"kind": "llvm", "mtriple": f"{architecture}-linux-gnu"})
    known = [str(cpu) for cpu in codegen.llvm_get_cpu_archlist(bare)]
    cpu = name or str(codegen.llvm_get_system_cpu())
    if not name and cpu not in known:
        cpu = "generic"  # a CPU newer than this LLVM: correct code, if not the best
    if cpu not in known:
        near = difflib.get_close_matches(cpu, known, n=1)
        hint = f": did you mean 'cpu:{near[0]}'?" if near else "; 'cpu' alone is this machine"
        raise TargetError(f"unknown target 'cpu:{cpu}' for {architecture}{hint}")
    with_cpu = TvmTarget({"kind": "llvm", "mtriple": f"{architecture}-linux-gnu", "mcpu": cpu})
    named = sorted(str(f) for f in codegen.llvm_get_cpu_features(with_cpu) if _is_vector(str(f)))
    # A virtual machine may hide features its CPU's name promises: code using them would die with SIGILL.
    missing = tuple(lacking_features(named))
    if name and missing:
        raise TargetError(
            f"this machine lacks {', '.join(missing)}, so code for 'cpu:{cpu}' could not be verified here: "
            f"choose an older CPU, or compile on such a machine"
        )
    features = tuple(f for f in named if f not in missing)
    return Target(architecture, cpu, features, disabled=missing, threads=threads)


def lacking_features(features: Iterable[str]) -> list[str]:
    """Those of `features` that this machine does not have."""
    return [f for f in features if _squash(f) not in host_features()]


def _is_vector(feature: str) -> bool:
    return feature.startswith(_VECTOR_FEATURES)


@cache
def host_features() -> frozenset[str]:
    """Features this machine really has, in LLVM's spelling less its punctuation; where tiles are one, this process may
    use them from now on."""
    words = _cpuinfo_words()
    if _TILES in words and not allow_tiles():
        words = {word for word in words if not word.startswith("amx")}
    renamed = {name for name, word in _CPUINFO_NAMES.items() if word in words}
    return frozenset({_squash(word) for word in words} | renamed)


def cpuinfo_words(features: Iterable[str]) -> list[str]:
    """What /proc/cpuinfo of this machine, which has them, calls these features."""
    wanted = {_squash(feature) for feature in features}
    renamed = {word for name, word in _CPUINFO_NAMES.items() if name in wanted}
    return sorted(word for word in _cpuinfo_words() if _squash(word) in wanted or word in renamed)


def _cpuinfo_words() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def _squash(word: str) -> str:
    return word.replace("_", "").replace("-", "").replace(".", "")


def available_cores() -> int:
    """Cores this process may use: those it may run on, or as many as its container has processor time for."""
    cores, time = len(os.sched_getaffinity(0)), processor_time()
    return cores if time >= cores else max(1, round(time))
