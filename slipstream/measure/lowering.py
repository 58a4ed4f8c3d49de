"""From a scheduled program to code in memory, in two steps, and what its prepacked weights look like.

A program may read a weight in another order than the model stores it: its module then starts with blocks marked
`layout_rewrite_preproc` that copy the weight into that order. In a compiled model the copy happens once, at compile
time; so it is left out of what is timed, and the program gets weights that are packed already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx.build import codegen_build, split_host_device_mods

from slipstream.graph import tir_pipeline
from slipstream.measure.arena import Array, aligned
from slipstream.target import Target

_PREPROC = "meta_schedule.layout_rewrite_preproc"
# Slow on large programs, and without a trace in the machine code: LLVM drops empty loops anyway, and the second one
# changed none of the programs tried (docs/measuring.md).
_LEFT_TO_LLVM = ["tirx.RemoveNoOp", "s_tir.RenormalizeSplitPattern"]


@dataclass(frozen=True)
class Argument:
    """What a compiled function takes at one position."""

    shape: tuple[int, ...]
    dtype: str
    written: bool


@dataclass(frozen=True)
class Packing:
    """Argument `index` is the weight stored at `indices` (one array per dimension) of an array of `shape`."""

    index: int
    shape: tuple[int, ...]
    indices: tuple[Array, ...]

    def __call__(self, weight: Array) -> Array:
        packed = aligned(self.shape, weight.dtype)
        packed[self.indices] = weight
        return packed


@dataclass(frozen=True)
class Lowered:
    """A program after TVM's passes and before LLVM. Equal fingerprints mean equal code."""

    module: Any
    fingerprint: str
    packings: tuple[Packing, ...]
    device: Any = None


def read_module(text: str) -> tvm.IRModule:
    """The module of a `Candidate` or of an operator's reference."""
    mod = tvm.ir.load_json(text)
    if not isinstance(mod, tvm.IRModule) or "main" not in [v.name_hint for v in mod.get_global_vars()]:
        raise ValueError("not a TVM module with a function `main`")
    return mod


def lower(mod: tvm.IRModule, target: Target, *, prepack: bool = True) -> Lowered:
    """Run TVM's passes. Without `prepack`, weights are reordered on every run.

    TVM checks every field of every argument on entry, and those checks are a third of what LLVM has to compile for
    a typical program. Arguments here are our own, and the code of the operator is in another function: it stays
    the same without them. A program with assertions of its own keeps all.
    """
    skipped = [] if _asserts_something(mod["main"]) else [tirx.transform.SkipAssert()]
    packings = tuple(_packings(mod["main"])) if prepack else ()
    if packings:
        mod = s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    mod = tvm.IRModule({"main": mod["main"].with_attr("global_symbol", "main")})
    if target.gpu is not None:
        return _lower_for_gpu(mod, target, skipped)
    mod = tirx.transform.BindTarget(target.tvm.with_host(target.tvm))(mod)
    pipeline, finalize, _ = tirx.get_tir_pipeline(tir_pipeline.NAME)
    with tvm.transform.PassContext(disabled_pass=_LEFT_TO_LLVM):
        host, _ = split_host_device_mods(pipeline(mod))
    host = tvm.transform.Sequential([*skipped, finalize()])(host)
    # The same code with a weight packed differently is another program.
    packed = crc32(repr([(p.index, p.shape, [i.tolist() for i in p.indices]) for p in packings]).encode())
    return Lowered(host, f"{tvm_ffi.structural_hash(host, map_free_vars=True):x}-{packed:x}", packings)


def _lower_for_gpu(mod: tvm.IRModule, target: Target, skipped: list[Any]) -> Lowered:
    """Kernels, and the code on the host that launches them."""
    mod = tirx.transform.BindTarget(target.tvm)(mod)
    pipeline, finalize_host, finalize_device = tirx.get_tir_pipeline(tir_pipeline.NAME)
    host, kernels = split_host_device_mods(pipeline(mod))
    if not kernels:
        raise ValueError("the program has no kernel: nothing of it is bound to the GPU's threads")
    host = tvm.transform.Sequential([*skipped, finalize_host()])(host)
    device = finalize_device()(next(iter(kernels.values())))
    parts = [tvm_ffi.structural_hash(part, map_free_vars=True) for part in (host, device)]
    return Lowered(host, "-".join(f"{part:x}" for part in parts), (), device)


def generate_library(lowered: Lowered, target: Target, path: str) -> None:
    """A shared library of the kernels and what launches them; the process that loads it needs no compiler."""
    from slipstream.artifact.linker import link

    with target.tvm:
        kernels = codegen_build(lowered.device, target.tvm)
    library = codegen_build(lowered.module, target.host.tvm)
    library.import_module(kernels)
    tvm.runtime.Executable(library).export_library(path, fcompile=link)


def generate(lowered: Lowered, target: Target) -> Any:
    """Optimised machine code, as a module that can be run; the code is emitted when `main` is first asked for."""
    return codegen_build(lowered.module, target.tvm)


def arguments_of(func: tirx.PrimFunc) -> list[Argument]:
    """Shape, type and direction of every argument. Every dimension must be known."""
    written: set[Any] = set()

    def note(store: Any) -> None:
        written.add(store.buffer)

    tvm_ffi.structural_walk(func.body, ((tirx.BufferStore, note),))
    arguments = []
    for index, parameter in enumerate(func.params):
        if not isinstance(parameter.ty, tirx.buffer.BufferType):
            raise ValueError(f"argument {index} is not a tensor: only operators on tensors can be measured")
        if not all(isinstance(extent, tirx.IntImm) for extent in parameter.ty.shape):
            raise ValueError(f"argument {index} has a dimension that is not known before the run")
        shape = tuple(int(extent) for extent in parameter.ty.shape)
        is_written = any(buffer.same_as(parameter) for buffer in written)
        arguments.append(Argument(shape, str(parameter.ty.dtype), is_written))
    # An extern call writes without a store; the convention that results come last is what is left then.
    if not any(argument.written for argument in arguments) and arguments:
        arguments[-1] = Argument(arguments[-1].shape, arguments[-1].dtype, written=True)
    return arguments


def _asserts_something(func: tirx.PrimFunc) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(func.body, ((tirx.AssertStmt, found.append),))
    return bool(found)


def _packings(func: tirx.PrimFunc) -> list[Packing]:
    blocks: list[Any] = []

    def note(block: Any) -> None:
        if _PREPROC in block.annotations:
            blocks.append(block)

    tvm_ffi.structural_walk(func.body, ((s_tir.SBlock, note),))
    # A block that also pads the weight cannot be taken out by TVM's pass: it is run, and timed, every time.
    if not all(isinstance(block.body.value, tvm.ir.expr.TensorLoad) for block in blocks):
        return []
    return [_packing(block, func) for block in blocks]


def _packing(block: Any, func: tirx.PrimFunc) -> Packing:
    """Evaluate the indices a rewrite block stores to, once for the whole weight."""
    store, source = block.body, block.reads[0].source
    index = next(i for i, parameter in enumerate(func.params) if source.same_as(parameter))
    extents = [int(variable.dom.extent) for variable in block.iter_vars]
    grid = np.ogrid[tuple(slice(extent) for extent in extents)]
    values = {variable.var: axis for variable, axis in zip(block.iter_vars, grid, strict=True)}
    shape = tuple(int(extent) for extent in store.buffer.shape)
    return Packing(index, shape, tuple(np.asarray(_evaluate(i, values)) for i in store.indices))


def _evaluate(expression: Any, values: dict[Any, Any]) -> Any:
    if isinstance(expression, tirx.IntImm):
        return int(expression)
    for variable, value in values.items():
        if expression.same_as(variable):
            return value
    for kind, apply in _ARITHMETIC:
        if isinstance(expression, kind):
            return apply(_evaluate(expression.a, values), _evaluate(expression.b, values))
    raise ValueError(f"cannot evaluate {expression} in a layout rewrite")


_ARITHMETIC: tuple[tuple[Any, Any], ...] = (
    (tirx.Add, np.add),
    (tirx.Sub, np.subtract),
    (tirx.Mul, np.multiply),
    (tirx.FloorDiv, np.floor_divide),
    (tirx.FloorMod, np.mod),
)


def as_tensor(array: Array) -> Any:
    """TVM's view of an array; a copy for the types DLPack cannot carry from NumPy, such as bfloat16."""
    return tvm.runtime.from_dlpack(array) if array.dtype.kind in "biuf" else tvm.runtime.tensor(array)
