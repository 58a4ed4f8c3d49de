"""Applying programs to a prepared module, packing weights for them, and building it."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import transform
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx.build import codegen_build, split_host_device_mods

from slipstream.errors import BuildError, TargetError
from slipstream.graph.cpu import pipeline as tir_pipeline
from slipstream.graph.execution_plan import UnplannableError, call_passes, lower_to_calls, operators_of, plan_calls
from slipstream.graph.fold import fold_constants
from slipstream.graph.forms import schedule_untuned
from slipstream.graph.gpu.triton.kernel import launch_kernels
from slipstream.graph.relax_walk import bindings_of_main, is_constant, map_prim_funcs
from slipstream.machine.target import Target, available_cores
from slipstream.processes.forked import ForkedCrashError, side_by_side
from slipstream.runtime.plan import Plan
from slipstream.tvm_bridge.nodes import nodes
from slipstream.tvm_bridge.nvrtc import compile_kernels_separately, use_nvrtc

logger = logging.getLogger(__name__)

Program = Callable[[tirx.PrimFunc], tirx.PrimFunc]

# A scalar is part of the code; anything larger is a weight and is stored in the weights file.
_LARGEST_SCALAR = 16
_kept_objects: ContextVar[dict[bytes, bytes] | None] = ContextVar("kept objects", default=None)
# Each of the processes that build a model's operators takes some memory.
_MOST_PROCESSES = 16


@dataclass(frozen=True)
class BuiltModel:
    """Compiled code: `objects` with the operators that `plan` calls or, without one, an `executable` with a `main` for
    TVM's virtual machine, which takes the model's inputs and then one tuple: `weights`."""

    executable: Any
    weights: list[np.ndarray[Any, Any]]
    plan: Plan | None = None
    objects: tuple[bytes, ...] = ()


def apply_programs(mod: tvm.IRModule, target: Target, program: Program | None = None) -> tvm.IRModule:
    """Replace each operator by its scheduled form (by default, the default) and pack its weights to match."""
    with target.tvm:
        scheduled = map_prim_funcs(mod, program or (lambda func: schedule_untuned(func, target)))
        return fold_constants(transform.SplitLayoutRewritePreproc()(scheduled), target)


def build_planned(mod: tvm.IRModule, target: Target) -> BuiltModel:
    """Compile a module whose operators are scheduled: as a plan of calls where it can be, else as `build` does."""
    if target.gpu is not None:
        return build(mod, target)
    try:
        with target.tvm:
            separate, weights = _separate_weights(mod, largest_scalar=0)
            calls = lower_to_calls(separate, target)
            plan = plan_calls(calls, target.vector_lanes)
    except UnplannableError as reason:
        logger.info("the model runs in TVM's virtual machine: %s", reason)
        return build(mod, target)
    objects = build_objects(operators_of(calls, plan), target, plan.unaligned_arguments())
    return BuiltModel(None, weights, plan, tuple(objects))


def build(mod: tvm.IRModule, target: Target) -> BuiltModel:
    """Compile a module whose operators are scheduled, for TVM's virtual machine."""
    mod, weights = _separate_weights(mod)
    try:
        with _context(target):
            if target.gpu is not None:
                mod = launch_kernels(_with_fixed_inputs(mod), target)
            executable = tvm.compile(
                mod, target=target.tvm, relax_pipeline=_lowering(target), tir_pipeline=tir_pipeline.NAME
            )
    except (tvm.error.InternalError, ValueError, RuntimeError) as error:
        raise BuildError(f"TVM could not build the model: {_last_line(error)}") from error
    return BuiltModel(executable, weights)


@contextmanager
def _context(target: Target) -> Iterator[None]:
    """The context in which TVM compiles for this target."""
    if target.gpu is None:
        yield
        return
    prepare_for_cuda()
    with (
        compile_kernels_separately(),
        target.tvm,
        tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}),
    ):
        yield


def prepare_for_cuda() -> None:
    """Make TVM able to generate CUDA code in this process."""
    from slipstream.machine.cuda_libraries import load_runtime

    if not load_runtime():
        raise TargetError(
            "the CUDA runtime is not found, without which TVM cannot build for a GPU: "
            "pip install 'slipstream[cuda]' on a machine with NVIDIA's driver"
        )
    use_nvrtc()


def build_processes() -> int:
    """How many build a model's operators side by side."""
    return min(available_cores(), _MOST_PROCESSES)


@contextmanager
def keeping_objects() -> Iterator[None]:
    """Here an operator that several models have is built once: a tuned model and its untuned twin share many."""
    token = _kept_objects.set({})
    try:
        yield
    finally:
        _kept_objects.reset(token)


def build_objects(mod: tvm.IRModule, target: Target, unaligned: Mapping[str, Collection[int]]) -> list[bytes]:
    """An object file of each scheduled TIR function. Callers pass what the functions expect: they check no shapes.

    Arguments begin at a multiple of 64 bytes, except for those that are `unaligned`, by function and position.
    The files do not depend on how many processes build them.
    """
    functions = sorted(mod.functions.items(), key=lambda item: str(item[0].name_hint))
    # About as much for each process: how long a function takes to compile follows from its number of stores.
    order = sorted(range(len(functions)), key=lambda n: -_stores(functions[n][1]))
    odd = [unaligned.get(variable.name_hint, ()) for variable, _ in functions]
    kept = _kept_objects.get()
    keys = [] if kept is None else [_key(*pair, target) for pair in zip(functions, odd, strict=True)]
    objects = {n: kept[key] for n, key in enumerate(keys) if key in kept} if kept else {}
    missing = [n for n in order if n not in objects]
    processes = min(build_processes(), len(missing))
    shares = [missing[n::processes] for n in range(processes)]

    def build_share(share: list[int]) -> dict[int, bytes]:
        return {n: _object_of(functions[n], target, odd[n]) for n in share}

    works = [partial(build_share, share) for share in shares]
    try:
        built = side_by_side(works) if processes > 1 else [work() for work in works]
    except ForkedCrashError as error:
        raise BuildError(f"TVM could not build the model: its compiler was {error}") from None
    objects |= {n: content for share in built for n, content in share.items()}
    if kept is not None:
        kept |= {key: objects[n] for n, key in enumerate(keys)}
    return [objects[n] for n in range(len(functions))]


def _key(named: tuple[Any, tirx.PrimFunc], unaligned: Collection[int], target: Target) -> bytes:
    """Equal where `_object_of` gives the same."""
    variable, func = named
    text = "\n".join([variable.name_hint, str(sorted(unaligned)), str(target.tvm), str(tvm.ir.save_json(func))])
    return hashlib.blake2b(text.encode(), digest_size=20).digest()


def _stores(func: tirx.PrimFunc) -> int:
    return len(nodes(func.body, tirx.BufferStore))


def _object_of(named: tuple[Any, tirx.PrimFunc], target: Target, unaligned: Collection[int]) -> bytes:
    name, func = named
    anywhere = [func.params[position] for position in unaligned]
    try:
        mod = tirx.transform.BindTarget(target.tvm.with_host(target.tvm))(tvm.IRModule({name: func}))
        lower, finalize_host, _ = tirx.get_tir_pipeline(tir_pipeline.NAME)
        host, _ = split_host_device_mods(lower(mod))
        host = tvm.transform.Sequential([tirx.transform.SkipAssert(), finalize_host()])(host)
        built = codegen_build(_without_alignment(host, anywhere), target.tvm)
    except (tvm.error.InternalError, ValueError, RuntimeError) as error:
        raise BuildError(f"TVM could not build the model: {_last_line(error)}") from error
    with tempfile.TemporaryDirectory() as scratch:
        built.write_to_file(str(file := Path(scratch) / "operator.o"), "o")
        return file.read_bytes()


def _without_alignment(mod: tvm.IRModule, arguments: Sequence[Any]) -> tvm.IRModule:
    """Functions that read and write elements of these arguments of theirs wherever they are."""
    met = []

    def loosen(declared: Any) -> Any:
        if declared.attr_key != "storage_alignment" or not any(map(declared.node.same_as, arguments)):
            return declared
        met.append(declared.node)
        return tirx.AttrStmt(declared.node, declared.attr_key, tirx.IntImm("int32", 1), declared.body)

    mod = map_prim_funcs(
        mod, lambda func: func.with_body(tvm_ffi.structural_map(func.body, ((tirx.AttrStmt, loosen),)))
    )
    if len(met) != len(arguments):
        raise BuildError(f"the alignment of {len(arguments) - len(met)} arguments is not where TVM declares it")
    return mod


def _lowering(target: Target) -> Any:
    """From scheduled operators to the virtual machine's code; no pass that would fuse or schedule again."""
    return tvm.transform.Sequential(
        [
            *call_passes(),
            # What does not write an output is launched as one graph.
            *([transform.RewriteCUDAGraph()] if target.gpu is not None else []),
            transform.LowerAllocTensor(),
            transform.KillAfterLastUse(),
            transform.LowerRuntimeBuiltin(),
            transform.ComputePrimValue(),
            transform.VMShapeLower(),
            transform.AttachGlobalSymbol(),
        ]
    )


def _separate_weights(
    mod: tvm.IRModule, largest_scalar: int = _LARGEST_SCALAR
) -> tuple[tvm.IRModule, list[np.ndarray[Any, Any]]]:
    """Move the constants of `main` into one tuple that is its last parameter, each distinct one once."""
    main = mod["main"]
    collect = _WeightsToParameters(largest_scalar, _constants_given_away(mod))
    body = collect.visit_expr(main.body)
    lifted = relax.Function([*main.params, *collect.parameters], body, main.ret_ty, main.is_pure)
    functions = dict(mod.functions.items())
    functions[mod.get_global_var("main")] = lifted.with_attr("num_input", len(main.params))
    mod = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return transform.BundleModelParams("weights")(mod), collect.weights


def _constants_given_away(mod: tvm.IRModule) -> set[int]:
    """Where the constants begin that are outputs. As weights they are known by that; a part of the code is not."""
    bound = {binding.var: binding.value for binding in bindings_of_main(mod)}

    def resolved(value: Any) -> Any:
        while value in bound:
            value = bound[value]
        return value

    returned = resolved(mod["main"].body.body)
    values = [resolved(value) for value in (returned.fields if isinstance(returned, relax.Tuple) else [returned])]
    return {
        value.value.data_ptr() for value in values if is_constant(value) and isinstance(value.value, tvm.runtime.Tensor)
    }


def _with_fixed_inputs(mod: tvm.IRModule) -> tvm.IRModule:
    """The module for a caller that always passes the same tensors: kernels that read them may be in a CUDA graph."""
    functions = dict(mod.functions.items())
    main = mod.get_global_var("main")
    functions[main] = mod[main].with_attr("num_input", 0)
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


@mutator
class _WeightsToParameters(PyExprMutator):  # type: ignore[misc]
    def __init__(self, largest_scalar: int, always: Collection[int]) -> None:
        super().__init__()
        self.largest_scalar = largest_scalar
        self.always = always
        self.parameters: list[Any] = []
        self.weights: list[np.ndarray[Any, Any]] = []
        self.seen: dict[Any, Any] = {}

    def visit_generic_const_(self, op: Any) -> Any:
        if not isinstance(op.value, tvm.runtime.Tensor):
            return op
        array = _array_of(op.value)
        beginning = op.value.data_ptr()
        # TVM cannot read an empty constant back.
        if 0 < array.nbytes <= self.largest_scalar and beginning not in self.always:
            return op
        address = (beginning, array.shape, str(array.dtype))
        if address not in self.seen:
            self.seen[address] = relax.Var(f"weight_{len(self.weights)}", op.ty)
            self.parameters.append(self.seen[address])
            self.weights.append(array)
        return self.seen[address]


def _array_of(tensor: Any) -> np.ndarray[Any, Any]:
    """The tensor's memory as an array; a copy for bfloat16, which NumPy cannot take by DLPack."""
    array: np.ndarray[Any, Any] = tensor.numpy() if str(tensor.dtype) == "bfloat16" else np.from_dlpack(tensor)
    return array


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1]
