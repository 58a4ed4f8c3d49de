"""From a scheduled Relax module to the plan of its calls: no interpreter and no allocation are left for run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import transform

from slipstream.graph.concatenations import BOXES, write_in_place
from slipstream.graph.extents import are_known
from slipstream.graph.operators import count_flops
from slipstream.graph.parallelism import threads_worth
from slipstream.graph.relax_walk import bindings_of_main, prim_funcs
from slipstream.machine.target import Target
from slipstream.runtime.plan import Place, Plan, PlannedTensor, Step, aligned, type_code
from slipstream.tvm_bridge.nodes import nodes

_ALLOC_STORAGE = tvm.ir.Op.get("relax.memory.alloc_storage")
_ALLOC_TENSOR = tvm.ir.Op.get("relax.memory.alloc_tensor")
_ALLOC_RESULT = tvm.ir.Op.get("relax.builtin.alloc_tensor")
_RESHAPE = tvm.ir.Op.get("relax.reshape")
_PACKED_CALLS = ("tirx.tvm_call_packed", "tirx.tvm_call_cpacked", "tirx.tvm_call_trace_packed")


class UnplannableError(Exception):
    """The module does something that a plan of calls cannot: the message says what."""


def call_passes(*changes: Any) -> list[Any]:
    """The passes after which `main` is calls on tensors in planned storage, with `changes` before that is planned. None
    of them fuses or schedules."""
    return [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        *changes,
        transform.StaticPlanBlockMemory(),
    ]


def lower_to_calls(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The module with `main` as calls on tensors in planned storage, or on parts of such."""
    in_place = tvm.transform.module_pass(lambda mod, _: write_in_place(mod, target), opt_level=0, name="WriteInPlace")
    return tvm.transform.Sequential(call_passes(in_place))(mod)


def plan_calls(mod: tvm.IRModule, lanes: int) -> Plan:
    """The plan of a module that `lower_to_calls` made, for a CPU with so many 32-bit `lanes` in a vector.

    Raises `UnplannableError` if `main` holds anything but calls of operators with fixed shapes.
    """
    for variable, func in prim_funcs(mod).items():
        if _calls_runtime(func):
            raise UnplannableError(f"{variable.name_hint} calls a function of TVM's runtime")
    flops = {variable.name_hint: count_flops(func) for variable, func in prim_funcs(mod).items()}
    planner = _Planner(mod["main"], flops, lanes)
    for binding in bindings_of_main(mod):
        planner.bind(binding.var, binding.value)
    return planner.finish(mod["main"].body.body)


def operators_of(mod: tvm.IRModule, plan: Plan) -> tvm.IRModule:
    """The TIR functions that the plan calls, and nothing else."""
    called = {step.function for step in plan.steps}
    functions = {
        variable.name_hint: func.with_attr("global_symbol", variable.name_hint)
        for variable, func in prim_funcs(mod).items()
        if variable.name_hint in called
    }
    return tvm.IRModule(functions)


def _calls_runtime(func: tirx.PrimFunc) -> bool:
    called = [call.op for call in nodes(func.body, tvm.ir.Call)]
    return any(isinstance(op, tvm.ir.Op) and op.name in _PACKED_CALLS for op in called)


# A tensor of the plan by its number, or several.
_Value = int | tuple["_Value", ...]


class _Planner:
    """Follows the bindings of `main`: each variable is a tensor, a tuple of tensors, or a storage."""

    def __init__(self, main: relax.Function, flops: Mapping[str, int], lanes: int) -> None:
        *inputs, self._weights = main.params
        self._flops, self._lanes = flops, lanes
        self._tensors: list[PlannedTensor] = []
        self._values: dict[Any, _Value] = {}
        self._storages: dict[Any, int] = {}
        self._results = 0  # tensors with memory of their own, which may turn out to be outputs
        self._steps: list[Step] = []
        self._arena = 0
        for index, parameter in enumerate(inputs):
            self._values[parameter] = self._add(Place.INPUT, index, parameter.ty)

    def bind(self, var: Any, value: Any) -> None:
        if isinstance(value, relax.Call):
            self._call(var, value)
        elif isinstance(value, relax.Var) and value in self._storages:
            self._storages[var] = self._storages[value]
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(self._weights):
            self._values[var] = self._add(Place.WEIGHTS, value.index, var.ty)
        elif not isinstance(value, relax.ShapeExpr):
            self._values[var] = self._value(value)

    def finish(self, result: Any) -> Plan:
        value = self._value(result)
        outputs = tuple(self._one(each) for each in value) if isinstance(value, tuple) else (value,)
        # Memory that is (a view of) an output becomes that output's; what is left goes into the arena.
        place_of: dict[int, tuple[Place, int]] = {}
        for number, output in enumerate(outputs):
            tensor = self._tensors[output]
            if tensor.place is Place.OUTPUT:
                place_of.setdefault(tensor.offset, (Place.OUTPUT, number))
        for tensor in self._tensors:
            if tensor.place is Place.OUTPUT and tensor.offset not in place_of:
                place_of[tensor.offset] = (Place.ARENA, self._reserve(tensor.nbytes))
        tensors = tuple(
            replace(tensor, place=place_of[tensor.offset][0], offset=place_of[tensor.offset][1])
            if tensor.place is Place.OUTPUT
            else tensor
            for tensor in self._tensors
        )
        return Plan(tensors, tuple(self._steps), outputs, self._arena)

    def _value(self, expression: Any) -> _Value:
        if isinstance(expression, relax.Tuple):
            return tuple(self._value(field) for field in expression.fields)
        if isinstance(expression, relax.TupleGetItem):
            whole = self._value(expression.tuple_value)
            if isinstance(whole, tuple):
                item: _Value = whole[int(expression.index)]
                return item
        if isinstance(expression, relax.Var) and expression in self._values:
            return self._values[expression]
        raise UnplannableError(f"{type(expression).__name__} {expression} is no tensor of the plan")

    def _one(self, value: _Value) -> int:
        if isinstance(value, tuple):
            raise UnplannableError("a tuple stands where a tensor is expected")
        return value

    def _call(self, var: Any, call: Any) -> None:
        if isinstance(call.op, tvm.ir.GlobalVar):
            arguments = tuple(self._one(self._value(argument)) for argument in call.args)
            if call.attrs and BOXES in call.attrs:
                arguments = tuple(map(self._box, arguments, call.attrs[BOXES]))
            name = call.op.name_hint
            sizes = (self._tensors[index].nbytes for index in arguments)
            self._steps.append(Step(name, arguments, threads_worth(self._flops[name], sizes, self._lanes)))
        elif call.op == _ALLOC_STORAGE:
            self._storages[var] = self._reserve(_only_number(call.args[0]))
        elif call.op == _ALLOC_TENSOR:
            offset = self._storages[call.args[0]] + int(call.args[1].value)
            self._values[var] = self._add(Place.ARENA, offset, var.ty)
        elif call.op == _ALLOC_RESULT:
            # Numbered from -1 down until it is known whether the memory is an output's.
            self._results += 1
            self._values[var] = self._add(Place.OUTPUT, -self._results, var.ty)
        elif call.op == _RESHAPE:
            whole = self._tensors[self._one(self._value(call.args[0]))]
            self._values[var] = self._add(whole.place, whole.offset, var.ty)
        else:
            raise UnplannableError(f"main calls {call.op}")

    def _box(self, whole: int, box: Sequence[int]) -> int:
        """A tensor, or the part of it that `box` says."""
        if not len(box):
            return whole
        begin, *shape = map(int, box)
        tensor = self._tensors[whole]
        nbytes = begin * type_code(tensor.dtype)[1] // 8
        self._tensors.append(replace(tensor, shape=tuple(shape), begin=nbytes))
        return len(self._tensors) - 1

    def _reserve(self, size: int) -> int:
        offset, self._arena = self._arena, self._arena + aligned(size)
        return offset

    def _add(self, place: Place, offset: int, kind: Any) -> int:
        if not isinstance(kind, relax.TensorType) or kind.shape is None:
            raise UnplannableError(f"{kind} is no tensor of known shape")
        extents: list[Any] = list(kind.shape.values) if isinstance(kind.shape, relax.ShapeExpr) else [None]
        if not are_known(extents):
            raise UnplannableError(f"{kind} has a dimension that is not known before the run")
        dtype = str(kind.dtype)
        type_code(dtype)
        self._tensors.append(PlannedTensor(place, offset, tuple(int(extent) for extent in extents), dtype))
        return len(self._tensors) - 1


def _only_number(shape: Any) -> int:
    (extent,) = shape.values
    if not isinstance(extent, tirx.IntImm):
        raise UnplannableError("a storage has a size that is not known before the run")
    return int(extent)
