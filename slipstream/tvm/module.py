"""A user's Relax module: what of it can be tuned, in the form in which MetaSchedule would see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import pipeline, transform

from slipstream.artifact.write import tvm_errors
from slipstream.errors import InputError, ModelError, ShapeError
from slipstream.frontends.inputs import TensorSpec
from slipstream.graph.describe.key import operator_key
from slipstream.graph.extents import takes_known_shapes
from slipstream.graph.relax_walk import calls_in, is_call_tir
from slipstream.machine.target import Target

_REMEDY = "give the module as a frontend makes it, or after relax.get_pipeline('zero')"


def bind(mod: Any, params: Mapping[str, Any] | None) -> tvm.IRModule:
    """The module with its parameters as constants, as MetaSchedule takes them."""
    if isinstance(mod, relax.Function):
        mod = tvm.IRModule({"main": mod})
    if not isinstance(mod, tvm.IRModule):
        raise InputError(f"a {type(mod).__name__} is no Relax module: give a tvm.IRModule or relax.Function")
    if params is not None and not isinstance(params, Mapping):
        raise InputError(f"params is a {type(params).__name__}: the order is mod, params, target, work_dir")
    if not params:
        return mod
    main = _main(mod)
    names = [parameter.name for parameter in main.params]
    if unknown := sorted(set(map(str, params)) - set(names)):
        raise InputError(f"main has no parameter {unknown[0]!r}, it has {', '.join(names)}: give params by these names")
    return transform.BindParams("main", dict(params))(mod)


def legalized(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """A module with operators of Relax as `compile_relax` legalises and fuses it; any other as it is."""
    if not _has_relax_operators(mod):
        return mod
    with tvm_errors("the module"):
        return fuse_as_compile_relax(mod, target)


def fuse_as_compile_relax(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The passes of MetaSchedule's `compile_relax` before it looks into the database."""
    passes = [
        *pipeline.library_dispatch_passes(target.tvm),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
    ]
    with target.tvm:
        return tvm.transform.Sequential(passes)(mod)


def operators_of(mod: tvm.IRModule, op_names: Sequence[str] | None = None) -> tuple[tvm.IRModule, frozenset[str]]:
    """A module whose `main` does nothing but call, as often, the functions that all functions of `mod` call, and the
    keys of these operators.

    Functions of unknown extents and those that are scheduled are left out, and so are those without one of
    `op_names` in their names.
    """
    calls = [call for call in tir_calls(mod) if is_tunable(mod[call.args[0]]) and len(call.args) == 2]
    if not calls:
        raise ModelError(f"the module has no operators to tune: {_REMEDY}")
    names = sorted({str(call.args[0].name_hint) for call in calls})
    wanted = [name for name in names if not op_names or any(part in name for part in op_names)]
    if not wanted:
        raise InputError(f"no operator has one of op_names in its name: choose from {', '.join(names)}")
    builder = relax.BlockBuilder()
    parameters: list[Any] = []
    functions: dict[str, Any] = {}
    keys = set()
    results = []
    with builder.function("main"):
        for call in calls:
            name = str(call.args[0].name_hint)
            if name not in wanted:
                continue
            if name not in functions:
                func = mod[call.args[0]]
                functions[name] = builder.add_func(func, name)
                keys.add(operator_key(func))
            arguments = [relax.Var(f"a{len(parameters) + i}", a.ty) for i, a in enumerate(call.args[1].fields)]
            parameters += arguments
            results.append(
                builder.emit(relax.Call(call.op, [functions[name], relax.Tuple(arguments)], None, call.ty_args))
            )
        builder.emit_func_output(relax.Tuple(results), parameters)
    return builder.get(), frozenset(keys)


def tir_calls(mod: tvm.IRModule) -> Iterator[Any]:
    """Every call of a TIR function in a function of Relax."""
    return (call for call in _calls(mod) if is_call_tir(call) and isinstance(mod[call.args[0]], tirx.PrimFunc))


def is_tunable(func: tirx.PrimFunc) -> bool:
    """Whether all extents of a function's arguments are known, and nobody has scheduled it."""
    if func.attrs and func.attrs.get("tirx.is_scheduled", False):
        return False
    return takes_known_shapes(func)


def inputs_of(mod: tvm.IRModule) -> tuple[TensorSpec, ...]:
    """What `main` takes."""
    specs = []
    for parameter in _main(mod).params:
        kind = parameter.ty
        if not isinstance(kind, relax.TensorType) or kind.shape is None:
            raise ModelError(f"parameter {parameter.name!r} of main is no tensor of known shape: {_REMEDY}")
        for extent in kind.shape:
            if not isinstance(extent, tirx.IntImm):
                raise ShapeError(
                    f"parameter {parameter.name!r} of main has the symbolic dimension {extent}: fix it with "
                    f'relax.transform.BindSymbolicVars("main", {{"{extent}": 1}}), or in the frontend'
                )
        specs.append(TensorSpec(str(parameter.name), tuple(map(int, kind.shape)), str(kind.dtype)))
    return tuple(specs)


def _main(mod: tvm.IRModule) -> Any:
    mains = [f for v, f in mod.functions.items() if v.name_hint == "main" and isinstance(f, relax.Function)]
    if not mains:
        raise ModelError(f"the module has no Relax function main: {_REMEDY}")
    return mains[0]


def _has_relax_operators(mod: tvm.IRModule) -> bool:
    """Whether a function calls what LegalizeOps would replace."""
    return any(isinstance(call.op, tvm.ir.Op) and call.op.get_attr("FLegalize") for call in _calls(mod))


def _calls(mod: tvm.IRModule) -> list[Any]:
    return [call for func in mod.functions.values() if isinstance(func, relax.Function) for call in calls_in(func)]
