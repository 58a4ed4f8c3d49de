"""Constant folding with one build for the whole model, and none for functions that only move elements.

TVM's own FoldConstant compiles every constant expression by itself, which takes seconds on a model of fifty
convolutions. Here all that compute something are built as one parallel module, run once, and replaced by their values.
It works on legalised modules, where every computation is a call of a TIR function.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.cpu.default_schedule import schedule_default
from slipstream.graph.extents import are_known
from slipstream.graph.moves import apply_moves, moves_of
from slipstream.graph.relax_walk import bindings_of_main, is_call_tir, is_constant, with_main
from slipstream.machine.target import Target
from slipstream.machine.threads import use_threads


def fold_constants(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Replace every call of a TIR function on constants alone by its result, computed on the CPU."""
    target = target.host
    foldable = _foldable_bindings(mod)
    if not foldable:
        return mod
    library = _build(mod, foldable, target)
    use_threads(target.threads)
    values: dict[Any, Any] = {}
    for binding in foldable:
        values[binding.var] = _evaluate(binding.value, binding.var.ty, values, library)
    tensors = {var: relax.const(value) for var, value in values.items() if not isinstance(value, list)}
    values.clear()
    main = _Substitute(tensors).visit_expr(mod["main"])
    return relax.transform.DeadCodeElimination()(with_main(mod, main))


def _foldable_bindings(mod: tvm.IRModule) -> list[Any]:
    """Bindings whose value depends on constants alone, producers first."""
    known: set[Any] = set()
    foldable = []
    for binding in bindings_of_main(mod):
        if isinstance(binding, relax.VarBinding) and _is_foldable(binding, known):
            known.add(binding.var)
            foldable.append(binding)
    return foldable


def _is_foldable(binding: Any, known: set[Any]) -> bool:
    value = binding.value
    if is_call_tir(value):
        arguments = value.args[1].fields
        return (
            len(value.args) == 2
            and len(arguments) > 0
            and all(is_constant(a) or a in known for a in arguments)
            and all(_is_static(field) for field in _fields(binding.var.ty))
        )
    if isinstance(value, relax.TupleGetItem):
        return value.tuple_value in known
    return isinstance(value, relax.Var) and value in known


# Functions that were built, or do without: the variants of a model for several shapes fold the same weights in the same
# way.
_BUILT: OrderedDict[tuple[Any, str], Any] = OrderedDict()
_MOST_BUILT = 1000


def _build(mod: tvm.IRModule, foldable: list[Any], target: Target) -> dict[str, Any]:
    """The functions that are called on constants, by name."""
    names = [binding.value.args[0] for binding in foldable if is_call_tir(binding.value)]
    keys = {
        gv.name_hint: (tvm_ffi.StructuralKey(mod[gv].without_attr("global_symbol")), str(target.tvm)) for gv in names
    }
    missing = {keys[gv.name_hint]: gv for gv in names if keys[gv.name_hint] not in _BUILT}
    moves = {key: moves_of(mod[gv]) for key, gv in missing.items()}
    _BUILT.update((key, partial(apply_moves, own)) for key, own in moves.items() if own is not None)
    missing = {key: gv for key, gv in missing.items() if moves[key] is None}
    functions = {
        gv.name_hint: schedule_default(mod[gv], target).with_attr("global_symbol", gv.name_hint)
        for gv in missing.values()
    }
    if functions:
        library = tvm.compile(tvm.IRModule(functions), target=target.tvm).jit()
        _BUILT.update((key, library[gv.name_hint]) for key, gv in missing.items())
    found = {name: _BUILT[key] for name, key in keys.items()}
    while len(_BUILT) > _MOST_BUILT:
        _BUILT.popitem(last=False)
    return found


def _evaluate(value: Any, type_: Any, values: dict[Any, Any], library: dict[str, Any]) -> Any:
    """The tensor (or list of tensors) that `value` stands for."""

    def tensor_of(expr: Any) -> Any:
        return expr.value if is_constant(expr) else values[expr]

    if isinstance(value, relax.TupleGetItem):
        return values[value.tuple_value][value.index]
    if isinstance(value, relax.Var):
        return values[value]
    outputs = [tvm.runtime.empty([int(extent) for extent in field.shape], str(field.dtype)) for field in _fields(type_)]
    library[value.args[0].name_hint](*[tensor_of(a) for a in value.args[1].fields], *outputs)
    return outputs if isinstance(type_, relax.TupleType) else outputs[0]


def _fields(type_: Any) -> list[Any]:
    return list(type_.fields) if isinstance(type_, relax.TupleType) else [type_]


def _is_static(type_: Any) -> bool:
    return isinstance(type_, relax.TensorType) and type_.shape is not None and are_known(type_.shape)


@mutator
class _Substitute(PyExprMutator):  # type: ignore[misc]
    """Puts constants in the place of variables."""

    def __init__(self, constants: dict[Any, Any]) -> None:
        super().__init__()
        self.constants = constants

    def visit_var_(self, op: Any) -> Any:
        return self.constants.get(op, op)

    def visit_dataflow_var_(self, op: Any) -> Any:
        return self.constants.get(op, op)
