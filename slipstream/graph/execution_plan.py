"""From a scheduled Relax module to the plan of its calls: no interpreter and no allocation are left for run time."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import transform

from slipstream.graph.relax_walk import bindings_of_main, prim_funcs
from slipstream.runtime.plan import Place, Plan, PlannedTensor, Step, aligned, type_code

_ALLOC_STORAGE = tvm.ir.Op.get("relax.memory.alloc_storage")
_ALLOC_TENSOR = tvm.ir.Op.get("relax.memory.alloc_tensor")
_ALLOC_RESULT = tvm.ir.Op.get("relax.builtin.alloc_tensor")
_RESHAPE = tvm.ir.Op.get("relax.reshape")
_PACKED_CALLS = ("tirx.tvm_call_packed", "tirx.tvm_call_cpacked", "tirx.tvm_call_trace_packed")


class UnplannableError(Exception):
    """The module does something that a plan of calls cannot: the message says what."""


def call_passes() -> list[Any]:
    """The passes after which `main` is calls on tensors in planned storage. None of them fuses or schedules."""
    return [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
    ]


def lower_to_calls(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with `main` as calls on tensors in planned storage."""
    return tvm.transform.Sequential(call_passes())(mod)


def plan_calls(mod: tvm.IRModule) -> Plan:
    """The plan of a module that `lower_to_calls` made.

    Raises `UnplannableError` if `main` holds anything but calls of operators with fixed shapes.
    """
    for variable, func in prim_funcs(mod).items():
        if _calls_runtime(func):
            raise UnplannableError(f"{variable.name_hint} calls a function of TVM's runtime")
    planner = _Planner(mod["main"])
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
    found: list[Any] = []

    def note(call: Any) -> None:
        if isinstance(call.op, tvm.ir.Op) and call.op.name in _PACKED_CALLS:
            found.append(call)

    tvm_ffi.structural_walk(func.body, ((tvm.ir.Call, note),))
    return bool(found)


class _Planner:
    """Follows the bindings of `main`; each variable is a tensor, a storage or an entry of the weights."""

    def __init__(self, main: relax.Function) -> None:
        *inputs, self._weights = main.params
        self._tensors: list[PlannedTensor] = []
        self._by_var: dict[Any, int] = {}
        self._storages: dict[Any, int] = {}
        self._results: list[int] = []  # tensors with memory of their own, which may turn out to be outputs
        self._steps: list[Step] = []
        self._arena = 0
        for index, parameter in enumerate(inputs):
            self._by_var[parameter] = self._add(Place.INPUT, index, parameter.ty)

    def bind(self, var: Any, value: Any) -> None:
        if isinstance(value, relax.Var):
            self._alias(var, value)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(self._weights):
            self._by_var[var] = self._add(Place.WEIGHTS, value.index, var.ty)
        elif isinstance(value, relax.Call):
            self._call(var, value)
        elif not isinstance(value, relax.ShapeExpr | relax.Tuple):
            raise UnplannableError(f"main binds a {type(value).__name__}")
        else:
            self._by_var[var] = -1  # used by nobody but `finish`, which looks at the expression
            self._last = (var, value)

    def finish(self, result: Any) -> Plan:
        values = self._values_of(result)
        outputs = [self._tensor_of(value) for value in values]
        tensors = list(self._tensors)
        # Memory of its own that is (a view of) an output becomes that output's; what is left goes into the arena.
        claimed: set[int] = set()
        for number, output in enumerate(outputs):
            root = tensors[output]
            if root.place is not Place.OUTPUT or root.offset in claimed or root.offset >= 0:
                continue
            claimed.add(root.offset)
            for index, tensor in enumerate(self._tensors):
                if tensor.place is Place.OUTPUT and tensor.offset == root.offset:
                    tensors[index] = PlannedTensor(Place.OUTPUT, number, tensor.shape, tensor.dtype)
        places: dict[int, int] = {}
        for index, tensor in enumerate(tensors):
            if tensor.place is Place.OUTPUT and tensor.offset < 0:
                if tensor.offset not in places:
                    places[tensor.offset] = self._reserve(tensor.nbytes)
                tensors[index] = PlannedTensor(Place.ARENA, places[tensor.offset], tensor.shape, tensor.dtype)
        return Plan(tuple(tensors), tuple(self._steps), tuple(outputs), self._arena)

    def _values_of(self, result: Any) -> list[Any]:
        last = getattr(self, "_last", None)
        if isinstance(result, relax.Var) and last is not None and result.same_as(last[0]):
            result = last[1]
        return list(result.fields) if isinstance(result, relax.Tuple) else [result]

    def _tensor_of(self, value: Any) -> int:
        index = self._by_var.get(value, -1) if isinstance(value, relax.Var) else -1
        if index < 0:
            raise UnplannableError(f"{value} is no tensor of the plan")
        return index

    def _alias(self, var: Any, value: Any) -> None:
        if value in self._storages:
            self._storages[var] = self._storages[value]
        else:
            self._by_var[var] = self._tensor_of(value)

    def _call(self, var: Any, call: Any) -> None:
        if isinstance(call.op, tvm.ir.GlobalVar):
            arguments = tuple(self._tensor_of(argument) for argument in call.args)
            self._steps.append(Step(call.op.name_hint, arguments))
        elif call.op == _ALLOC_STORAGE:
            self._storages[var] = self._reserve(_only_number(call.args[0]))
        elif call.op == _ALLOC_TENSOR:
            offset = self._storages[call.args[0]] + int(call.args[1].value)
            self._by_var[var] = self._add(Place.ARENA, offset, var.ty)
        elif call.op == _ALLOC_RESULT:
            self._results.append(len(self._tensors))
            # A negative offset names the memory until it is known whether it is an output's.
            self._by_var[var] = self._add(Place.OUTPUT, -len(self._results), var.ty)
        elif call.op == _RESHAPE:
            whole = self._tensors[self._tensor_of(call.args[0])]
            self._by_var[var] = self._add(whole.place, whole.offset, var.ty)
        else:
            raise UnplannableError(f"main calls {call.op}")

    def _reserve(self, size: int) -> int:
        offset, self._arena = self._arena, self._arena + aligned(size)
        return offset

    def _add(self, place: Place, offset: int, kind: Any) -> int:
        if not isinstance(kind, relax.TensorType) or kind.shape is None:
            raise UnplannableError(f"{kind} is no tensor of known shape")
        extents: list[Any] = list(kind.shape.values) if isinstance(kind.shape, relax.ShapeExpr) else [None]
        if not all(isinstance(extent, tirx.IntImm) for extent in extents):
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
