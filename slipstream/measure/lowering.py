"""From a scheduled program to code in memory, in two steps, and what its prepacked weights look like.

A program may read a weight in another order than the model stores it, or transformed: its module then has blocks
marked `layout_rewrite_preproc` that make of the weight what the program reads. In a compiled model that happens once,
at compile time; so it is left out of what is timed, and the program gets weights that are packed already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx.build import codegen_build, split_host_device_mods

from slipstream.graph.cpu import pipeline as tir_pipeline
from slipstream.graph.extents import are_known
from slipstream.graph.gpu.triton.kernel import Kernel, compile_kernel, kernel_of
from slipstream.machine.target import Target
from slipstream.measure.arena import Array, aligned
from slipstream.tvm_bridge.nodes import nodes

_PREPROC = "meta_schedule.layout_rewrite_preproc"
# Slow on large programs, and without a trace in the machine code: LLVM drops empty loops anyway (docs/measuring.md).
_LEFT_TO_LLVM = ["tirx.RemoveNoOp"]


@dataclass(frozen=True)
class Argument:
    """What a compiled function takes at one position."""

    shape: tuple[int, ...]
    dtype: str
    written: bool


@dataclass(frozen=True)
class Packing:
    """Argument `index` is what `block` makes of the weight, an array of `shape`."""

    index: int
    shape: tuple[int, ...]
    block: Any

    def __call__(self, weight: Array) -> Array:
        """Run the block with NumPy, every statement for the whole weight at once."""
        packed = aligned(self.shape, weight.dtype)
        extents = [int(variable.dom.extent) for variable in self.block.iter_vars]
        grid = np.ogrid[tuple(slice(extent) for extent in extents)]
        values = {variable.var: axis for variable, axis in zip(self.block.iter_vars, grid, strict=True)}
        for statement in _statements(self.block):
            value = _evaluate(statement.value, values, weight)
            if isinstance(statement, tirx.Bind):
                values[statement.var] = value
            else:
                packed[tuple(_evaluate(index, values, weight) for index in statement.indices)] = value
        return packed


@dataclass(frozen=True)
class Lowered:
    """A program after TVM's passes and before LLVM. Equal fingerprints mean equal code.

    One with a Triton `kernel` is still to be lowered: how to launch the kernel is known once it is compiled.
    """

    module: Any
    fingerprint: str
    packings: tuple[Packing, ...]
    device: Any = None
    kernel: Kernel | None = None


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
    packings = tuple(packings_of(mod["main"])) if prepack else ()
    func = _take_packed(mod["main"], packings)
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    if target.gpu is not None:
        return _lower_for_gpu(mod, target, skipped)
    mod = tirx.transform.BindTarget(target.tvm.with_host(target.tvm))(mod)
    pipeline, finalize, _ = tirx.get_tir_pipeline(tir_pipeline.NAME)
    with tvm.transform.PassContext(disabled_pass=_LEFT_TO_LLVM):
        host, _ = split_host_device_mods(pipeline(mod))
    host = tvm.transform.Sequential([*skipped, finalize()])(host)
    # The same code with a weight packed differently is another program.
    packed = crc32(repr([(p.index, tvm_ffi.structural_hash(p.block, map_free_vars=True)) for p in packings]).encode())
    return Lowered(host, f"{tvm_ffi.structural_hash(host, map_free_vars=True):x}-{packed:x}", packings)


def _lower_for_gpu(mod: tvm.IRModule, target: Target, skipped: list[Any]) -> Lowered:
    """Kernels, and the code on the host that launches them."""
    if (kernel := kernel_of(mod["main"])) is not None:
        return Lowered(mod, kernel.name, (), kernel=kernel)
    host, kernels = _split_for_gpu(mod, target, skipped)
    if not kernels:
        raise ValueError("the program has no kernel: nothing of it is bound to the GPU's threads")
    _, _, finalize_device = tirx.get_tir_pipeline(tir_pipeline.NAME)
    device = finalize_device()(next(iter(kernels.values())))
    parts = [tvm_ffi.structural_hash(part, map_free_vars=True) for part in (host, device)]
    return Lowered(host, "-".join(f"{part:x}" for part in parts), (), device)


def _split_for_gpu(mod: tvm.IRModule, target: Target, skipped: list[Any]) -> tuple[Any, Any]:
    """What runs on the host, lowered, and the kernels."""
    mod = tirx.transform.BindTarget(target.tvm)(mod)
    pipeline, finalize_host, _ = tirx.get_tir_pipeline(tir_pipeline.NAME)
    host, kernels = split_host_device_mods(pipeline(mod))
    return tvm.transform.Sequential([*skipped, finalize_host()])(host), kernels


def generate_library(lowered: Lowered, target: Target, path: str) -> None:
    """A shared library of the kernels, if any, and what launches them; who loads it needs no compiler."""
    from slipstream.machine.linker import link

    host, imported = lowered.module, []
    if lowered.kernel is not None:
        assert target.gpu is not None
        compiled = compile_kernel(lowered.kernel, target.gpu.architecture)
        launcher = tvm.IRModule({"main": compiled.launcher(lowered.module["main"])})
        host, _ = _split_for_gpu(launcher, target, [tirx.transform.SkipAssert()])
        imported = [compiled.module]
    library = codegen_build(host, target.host.tvm)
    for module in imported:
        library.import_module(module)
    if lowered.device is not None:
        with target.tvm:
            library.import_module(codegen_build(lowered.device, target.tvm))
    tvm.runtime.Executable(library).export_library(path, fcompile=link)


def generate(lowered: Lowered, target: Target, optimisation: int | None = None) -> Any:
    """Machine code, as a module that can be run; the code is emitted when `main` is first asked for. `optimisation` is
    LLVM's level, from 0; the highest unless told.
    """
    chosen = target.tvm
    if optimisation is not None:
        chosen = tvm.target.Target({**chosen.export(), "opt-level": optimisation})
    return codegen_build(lowered.module, chosen)


def arguments_of(func: tirx.PrimFunc) -> list[Argument]:
    """Shape, type and direction of every argument. Every dimension must be known."""
    written = {store.buffer for store in nodes(func.body, tirx.BufferStore)}
    arguments = []
    for index, parameter in enumerate(func.params):
        if not isinstance(parameter.ty, tirx.buffer.BufferType):
            raise ValueError(f"argument {index} is not a tensor: only operators on tensors can be measured")
        if not are_known(parameter.ty.shape):
            raise ValueError(f"argument {index} has a dimension that is not known before the run")
        shape = tuple(int(extent) for extent in parameter.ty.shape)
        is_written = any(buffer.same_as(parameter) for buffer in written)
        arguments.append(Argument(shape, str(parameter.ty.dtype), is_written))
    # An extern call writes without a store; the convention that results come last is what is left then.
    if not any(argument.written for argument in arguments) and arguments:
        arguments[-1] = Argument(arguments[-1].shape, arguments[-1].dtype, written=True)
    return arguments


def _asserts_something(func: tirx.PrimFunc) -> bool:
    return bool(nodes(func.body, tirx.AssertStmt))


def packings_of(func: tirx.PrimFunc) -> list[Packing]:
    """How the program's weights are packed before it runs."""
    blocks = _packing_blocks(func.body)
    return [_packing(block, func) for block in blocks] if all(map(_is_simple, blocks)) else []


def _packing_blocks(body: Any) -> list[Any]:
    return [block for block in nodes(body, s_tir.SBlock) if _PREPROC in block.annotations]


def _packing(block: Any, func: tirx.PrimFunc) -> Packing:
    source, packed = block.reads[0].source, block.writes[0].source
    index = next(i for i, parameter in enumerate(func.params) if source.same_as(parameter))
    return Packing(index, tuple(int(extent) for extent in packed.shape), block)


def _is_simple(block: Any) -> bool:
    """Whether a block is nothing but sums and products. One that pads the weight is run, and timed, every time."""
    return all(_is_simple_value(statement.value) for statement in _statements(block))


def _is_simple_value(expression: Any) -> bool:
    if type(expression) in _ARITHMETIC:
        return _is_simple_value(expression.a) and _is_simple_value(expression.b)
    return isinstance(expression, tirx.IntImm | tirx.FloatImm | tvm.ir.Var | tvm.ir.expr.TensorLoad)


def _take_packed(func: tirx.PrimFunc, packings: Sequence[Packing]) -> tirx.PrimFunc:
    """The function without its packing blocks, with the packed weights as arguments."""
    if not packings:
        return func
    parameters, packed = list(func.params), [packing.block.writes[0].source for packing in packings]
    for packing, buffer in zip(packings, packed, strict=True):
        parameters[packing.index] = buffer
    root = func.body.block
    kept = [statement for statement in root.body.seq if not _packing_blocks(statement)]
    buffers = [buffer for buffer in root.alloc_buffers if not any(buffer.same_as(p) for p in packed)]
    body = tirx.SeqStmt(kept) if len(kept) > 1 else kept[0]
    whole = s_tir.SBlock([], root.reads, root.writes, root.name_hint, body, None, buffers, [], root.annotations)
    return tirx.PrimFunc(parameters, s_tir.SBlockRealize([], True, whole), func.ret_type, func.attrs)


def _statements(block: Any) -> list[Any]:
    return list(block.body.seq) if isinstance(block.body, tirx.SeqStmt) else [block.body]


def _evaluate(expression: Any, values: dict[Any, Any], weight: Array) -> Any:
    """The value of an expression, for all values of the block's variables at once."""
    if isinstance(expression, tirx.IntImm):
        return int(expression)
    if isinstance(expression, tirx.FloatImm):
        return weight.dtype.type(expression.value)
    if isinstance(expression, tvm.ir.Var):
        return values[expression]
    if isinstance(expression, tvm.ir.expr.TensorLoad):
        return weight[tuple(_evaluate(index, values, weight) for index in expression.indices)]
    apply = _ARITHMETIC[type(expression)]
    return apply(_evaluate(expression.a, values, weight), _evaluate(expression.b, values, weight))


_ARITHMETIC: dict[Any, Any] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
}


def as_tensor(array: Array) -> Any:
    """TVM's view of an array, also of types that NumPy does not hand over by DLPack, such as bfloat16."""
    if array.dtype.kind in "biuf":
        return tvm.runtime.from_dlpack(array)
    raw = tvm.runtime.from_dlpack(array.view(f"u{array.dtype.itemsize}"))
    return raw._create_view(array.shape, str(array.dtype))
