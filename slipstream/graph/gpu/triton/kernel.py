"""A Triton kernel: its source, how it is launched, its machine code, and the function that launches it.

An operator that a Triton kernel computes keeps its TIR and carries the kernel as an attribute, until it is built: then
it becomes a call of the kernel, whose machine code is a module of its own. Running it needs no Triton.

A kernel's scratch memory belongs to its module: a variable of the GPU's memory, zero when the module is loaded. Triton
has no such variables, so the kernel takes pointers, and their loads are replaced in its assembly.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from slipstream.errors import BuildError
from slipstream.machine.target import Target
from slipstream.runtime.link import cache_folder

ATTRIBUTE = "slipstream.triton"
_NAMES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "bool": "i1",
}
_SCRATCH = [("parts", "fp32"), ("counts", "i32")]
_LAUNCH = ["threadIdx.x", "blockIdx.x", "blockIdx.y", "blockIdx.z"]
_OVERLAPPING, _SHARED = "tirx.use_programtic_dependent_launch", "tirx.use_dyn_shared_memory"
_PARAMETER = re.compile(r"^\s*\.param\s.*?(\w+_param_\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Kernel:
    """`types` are those of the operator's arguments, which the kernel takes in their order; `scratch` the bytes of
    buffers that follow them, which are zero before the first launch and keep their content between launches.

    One that `overlaps` is launched when the kernel before it ends and waits itself until what that wrote can be read.
    """

    source: str
    types: tuple[str, ...]
    grid: tuple[int, int, int]
    warps: int
    stages: int
    scratch: tuple[int, ...] = ()
    overlaps: bool = False

    @cached_property
    def name(self) -> str:
        """Of the function on the GPU: different for different kernels."""
        return "triton_" + hashlib.blake2b(self.to_json().encode(), digest_size=8).hexdigest()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Kernel:
        fields: Any = {key: tuple(v) if isinstance(v, list) else v for key, v in json.loads(text).items()}
        return cls(**fields)


EXAMPLE = Kernel(
    """import triton
import triton.language as tl


@triton.jit
def kernel(p0):
    place = tl.arange(0, 16)
    tile = tl.load(p0 + place[:, None] * 16 + place[None, :])
    tl.store(p0 + place[:, None] * 16 + place[None, :], tl.dot(tile, tile).to(tl.float16))
""",
    ("float16",),
    (1, 1, 1),
    4,
    2,
)
"""A small kernel, to load the compiler with."""


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code for one architecture. `parameters` counts all that the kernel takes."""

    kernel: Kernel
    code: bytes
    shared_bytes: int
    parameters: int

    @property
    def module(self) -> Any:
        """As a module of TVM's."""
        types = ["handle"] * len(self.kernel.types)
        types += ["int64"] * (self.parameters - len(types))
        tags = [*_LAUNCH, *([_OVERLAPPING] if self.kernel.overlaps else []), _SHARED]
        info = {"name": self.kernel.name, "arg_types": types, "launch_param_tags": tags}
        described = {"tvm_version": tvm.__version__, "func_info": {self.kernel.name: info}}
        functions = tvm_ffi.get_global_func("runtime.LoadMetaDataFromJSON")(json.dumps(described))
        return tvm_ffi.get_global_func("ffi.Module.create.cuda")(self.code, "cubin", functions, {})

    def launcher(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """`func` as a launch of the kernel."""
        pointers = [parameter.data for parameter in func.params]
        unused = [tirx.IntImm("int64", 0)] * (self.parameters - len(pointers))
        launch = [32 * self.kernel.warps, *self.kernel.grid, self.shared_bytes]
        call = tirx.call_packed(self.kernel.name, *pointers, *unused, *launch)
        # TVM's passes look for a root block.
        body = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", tirx.Evaluate(call)))
        launcher = tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)
        return launcher.without_attr(ATTRIBUTE).with_attr("tirx.is_scheduled", True)


def with_kernel(func: tirx.PrimFunc, kernel: Kernel) -> tirx.PrimFunc:
    return func.with_attr(ATTRIBUTE, kernel.to_json())


def kernel_of(func: Any) -> Kernel | None:
    """The kernel that computes the function, if it has one."""
    text = func.attrs.get(ATTRIBUTE) if isinstance(func, tirx.PrimFunc) and func.attrs else None
    return None if text is None else Kernel.from_json(str(text))


def compile_kernel(kernel: Kernel, architecture: str) -> CompiledKernel:
    """Compile for an architecture such as sm_90. Triton keeps what it has compiled."""
    triton = _triton()
    from triton.backends.compiler import GPUTarget

    function = imported(kernel).kernel
    arguments = [(f"p{i}", _NAMES[dtype]) for i, dtype in enumerate(kernel.types)]
    arguments += _SCRATCH[: len(kernel.scratch)]
    source = triton.compiler.ASTSource(
        fn=function,
        signature={name: f"*{dtype}" for name, dtype in arguments},
        constexprs={},
        attrs={(i,): [["tt.divisibility", 16]] for i in range(len(arguments))},
    )
    target = GPUTarget("cuda", int(re.sub(r"\D", "", architecture)), 32)
    options = {"num_warps": kernel.warps, "num_stages": kernel.stages}
    compiled = triton.compile(source, target=target, options=options)
    assembly = str(compiled.asm["ptx"])
    name = str(compiled.metadata.name)
    parameters = len(_PARAMETER.findall(assembly[: assembly.index(")")]))
    code = _assemble(_with_scratch(assembly, name, kernel), str(compiled.metadata.arch))
    return CompiledKernel(kernel, code, int(compiled.metadata.shared), parameters)


def _with_scratch(assembly: str, name: str, kernel: Kernel) -> str:
    """The assembly with the kernel's own name and with variables in place of the pointers to scratch memory."""
    first = len(kernel.types)
    declared = []
    for number, size in enumerate(kernel.scratch):
        variable = f"{kernel.name}_scratch_{number}"
        declared.append(f".visible .global .align 256 .b8 {variable}[{size}];")
        load = re.compile(rf"ld\.param\.\w+(\s+%\w+), \[{name}_param_{first + number}\];")
        assembly, found = load.subn(rf"mov.u64\1, {variable};", assembly)
        if not found:
            raise BuildError("Triton's assembly does not load a pointer where it is expected")
    header = assembly.index(".address_size 64") + len(".address_size 64")
    assembly = "\n".join([assembly[:header], *declared, assembly[header:]])
    return re.sub(rf"\b{name}(?=\b|_param_)", kernel.name, assembly)


def _assemble(assembly: str, architecture: str) -> bytes:
    """Machine code of an assembly text, by the assembler that Triton comes with."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    capability = int(re.sub(r"\D", "", architecture))
    with tempfile.TemporaryDirectory() as folder:
        text, code = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        text.write_text(assembly)
        command = [
            get_ptxas(capability).path,
            f"--gpu-name={sm_arch_from_capability(capability)}",
            str(text),
            "-o",
            str(code),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"ptxas: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        return code.read_bytes()


def _triton() -> Any:
    folder = _cache()
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "compiled"))
    import triton

    triton.knobs.compilation.disable_line_info = True
    return triton


def _cache() -> Path:
    return cache_folder() / "triton"


def imported(kernel: Kernel) -> ModuleType:
    """Triton reads a kernel's source from the file that defines it."""
    folder = _cache() / "source"
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.blake2b(kernel.source.encode(), digest_size=12).hexdigest()
    path = folder / f"kernel_{digest}.py"
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file:
            file.write(kernel.source)
        os.replace(file.name, path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launch_kernels(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The module with launches in place of operators that have kernels, whose machine code it carries."""
    kernels = {variable: kernel for variable, func in mod.functions.items() if (kernel := kernel_of(func))}
    if not kernels or target.gpu is None:
        return mod
    # Those that were measured are in Triton's cache.
    compiled = {kernel.name: kernel for kernel in kernels.values()}
    codes = {name: compile_kernel(kernel, target.gpu.architecture) for name, kernel in compiled.items()}
    functions = dict(mod.functions.items())
    for variable, kernel in kernels.items():
        functions[variable] = codes[kernel.name].launcher(functions[variable])
    changed = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    others = list(mod.attrs["external_mods"]) if mod.attrs and "external_mods" in mod.attrs else []
    return changed.with_attr("external_mods", [*others, *(code.module for code in codes.values())])
