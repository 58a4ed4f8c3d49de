"""Concatenations on a CPU: the parts are written where they end up in the result, so that nothing is copied.

A part is a box of the result. The operators that write or read it are built anew from the same programs, for boxes of
tensors of the result's shape: they are chosen, tuned and measured as if the part were a tensor of its own. Boxes nest,
as in a DenseNet, where each result is a part of the next one. What cannot be written in place is copied: inputs of the
model, constants, views, and what is also a result of the model or a part of another result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx, topi

from slipstream.graph.extents import are_known
from slipstream.graph.forms import schedule_untuned
from slipstream.graph.fuse import KNOWN_PATTERN, OPAQUE
from slipstream.graph.gpu.kernel_facts import takes_address
from slipstream.graph.relax_walk import bindings_of_main, is_call_tir, with_main
from slipstream.machine.target import Target
from slipstream.runtime.plan import BOX, OPERATORS_ALIGNMENT
from slipstream.tvm_bridge.nodes import nodes

IN_PLACE = "slipstream.concatenation"
"""A function's attribute: the axis along which it joins tensors that are to be written in place."""

BOXES = "slipstream.boxes"
"""A call's attribute: of each argument that is a box of the tensor given, at which element it begins, and its shape."""

_ALLOC = tvm.ir.Op.get("relax.builtin.alloc_tensor")


def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A concatenation as a function; marked, and left alone by fusion, where most of it can be written in place."""
    (joined,) = call.args
    parts = list(joined.fields) if isinstance(joined, relax.Tuple) else []
    shapes = [part.ty.shape for part in parts]
    if call.attrs.axis is None or not parts or not all(shape is not None and are_known(shape) for shape in shapes):
        return call.op.get_attr("FLegalize")(builder, call)
    axis = int(call.attrs.axis) % len(shapes[0])
    sizes = [prod(map(int, shape)) for shape in shapes]
    computed = sum(size for part, size in zip(parts, sizes, strict=True) if _is_computed(builder, part))
    marks = {IN_PLACE: axis, KNOWN_PATTERN: OPAQUE} if 2 * computed >= sum(sizes) > 0 else None
    return builder.call_te(topi.concatenate, parts, axis, primfunc_attrs=marks)


LEGALIZERS = {"relax.concat": _legalize}


def _is_computed(builder: relax.BlockBuilder, part: Any) -> bool:
    """Whether a tensor is what a function writes that is more than another view of its argument."""
    value: Any = builder.lookup_binding(part) if isinstance(part, relax.Var) else None
    if not is_call_tir(value):
        return False
    return not relax.analysis.has_reshape_pattern(builder.get()[value.args[0]])


def is_in_place(func: tirx.PrimFunc) -> bool:
    """Whether the function only joins what is written in place: its calls are expected to cost nothing."""
    return bool(func.attrs) and IN_PLACE in func.attrs


@dataclass(frozen=True)
class Box:
    """Part of a tensor: where it begins on each axis, and its shape."""

    whole: Any
    begins: tuple[int, ...]
    shape: tuple[int, ...]

    def part(self, axis: int, begin: int, extent: int) -> Box:
        """A box of this one, from `begin` on along an axis."""
        begins, shape = list(self.begins), list(self.shape)
        begins[axis] += begin
        shape[axis] = extent
        return Box(self.whole, tuple(begins), tuple(shape))

    @property
    def begin(self) -> int:
        """How many elements after the tensor's first one it begins."""
        strides = _strides(_shape(self.whole))
        return sum(begin * stride for begin, stride in zip(self.begins, strides, strict=True))

    @property
    def is_dense(self) -> bool:
        """Whether its elements follow each other in memory."""
        steps = zip(self.shape, _strides(_shape(self.whole)), _strides(self.shape), strict=True)
        return all(extent == 1 or stride == own for extent, stride, own in steps)


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(map(int, tensor.ty.shape))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def write_in_place(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """A module that calls its scheduled functions with the tensors they write, with concatenations in place."""
    main = _Main.of(mod)
    called = {n: mod[call.op] for n, call in main.calls.items()}
    joins = {n: int(func.attrs[IN_PLACE]) for n, func in called.items() if is_in_place(func)}
    boxes, copied = _choose_boxes(mod, main, joins)
    return _Rewriting(mod, target, main, boxes, copied).result() if boxes else mod


@dataclass
class _Main:
    """The bindings of `main`: which are calls of functions, and what becomes of the tensors that it allocates."""

    bindings: list[Any]
    calls: dict[int, Any] = field(default_factory=dict)  # by binding
    tensors: dict[Any, Any] = field(default_factory=dict)  # of variables: the one that was bound to the allocation
    uses: dict[Any, list[tuple[int, int]]] = field(default_factory=dict)  # of tensors: in which call, at which place
    fixed: set[Any] = field(default_factory=set)  # tensors that are used otherwise, as a result or through a view

    @staticmethod
    def of(mod: tvm.IRModule) -> _Main:
        found = _Main(list(bindings_of_main(mod)))
        for n, binding in enumerate(found.bindings):
            value = binding.value
            if isinstance(value, relax.Var):
                if value in found.tensors:
                    found.tensors[binding.var] = found.tensors[value]
            elif isinstance(value, relax.Call) and value.op == _ALLOC:
                found.tensors[binding.var] = binding.var
                found.uses[binding.var] = []
            elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                found.calls[n] = value
                for place, tensor in enumerate(map(found.tensor, value.args)):
                    if tensor in found.uses:
                        found.uses[tensor].append((n, place))
            else:
                found._fix(value)
        found._fix(mod["main"].body.body)
        return found

    def tensor(self, argument: Any) -> Any:
        """The variable of an argument's allocation, if it has one."""
        return self.tensors.get(argument, argument) if isinstance(argument, relax.Var) else argument

    def _fix(self, value: Any) -> None:
        self.fixed.update(self.tensor(var) for var in relax.analysis.free_vars(value))


# By concatenation: parts that have to be copied, and to which box.
_Copied = dict[int, list[tuple[Any, Box]]]


def _choose_boxes(mod: tvm.IRModule, main: _Main, joins: Mapping[int, int]) -> tuple[dict[Any, Box], _Copied]:
    """Tensors that are boxes of others; and of each concatenation that is in place, the parts that have to be copied.

    `joins` are the concatenations and their axes. The last one is first: a result that is a part of a later one is a
    box of that.
    """
    boxes: dict[Any, Box] = {}
    copied: _Copied = {}
    wholes: set[Any] = set()

    def may_be(tensor: Any, box: Box) -> bool:
        if tensor not in main.uses or tensor in main.fixed or tensor in boxes or tensor in wholes:
            return False
        uses = [(main.calls[n].op, place) for n, place in main.uses[tensor] if n not in joins]
        return box.is_dense or all(_takes_boxes(mod[function], place) for function, place in uses)

    for n, axis in sorted(joins.items(), reverse=True):
        *parts, result = map(main.tensor, main.calls[n].args)
        extents = [_shape(part)[axis] for part in parts]
        places = [(axis, sum(extents[:i]), extent) for i, extent in enumerate(extents)]
        # A later concatenation may have these parts beside each other too.
        first = boxes.get(parts[0])
        there = replace(first, shape=_shape(result)) if first else None
        if there and may_be(result, there) and [boxes.get(p) for p in parts] == [there.part(*p) for p in places]:
            boxes[result], copied[n] = there, []
            continue
        box = boxes.get(result, Box(result, (0,) * len(_shape(result)), _shape(result)))
        own_boxes = [box.part(*place) for place in places]
        # Of bfloat16 it cannot be told which argument may begin anywhere: TVM replaces them as it lowers a function.
        if str(result.ty.dtype) == "bfloat16" and any(2 * own.begin % OPERATORS_ALIGNMENT for own in own_boxes):
            continue
        left = []
        for part, own in zip(parts, own_boxes, strict=True):
            if may_be(part, own):
                boxes[part] = own
            else:
                left.append((part, own))
        if len(left) < len(parts):
            copied[n] = left
            wholes.add(box.whole)
    return boxes, copied


class _Rewriting:
    """Makes a module in which tensors are boxes of others, allocated before the first of their boxes is used."""

    def __init__(
        self, mod: tvm.IRModule, target: Target, main: _Main, boxes: Mapping[Any, Box], copied: _Copied
    ) -> None:
        self._mod, self._target, self._main, self._boxes, self._copied = mod, target, main, boxes, copied
        self._builder = relax.BlockBuilder(mod)
        self._functions: dict[Any, Any] = {}

    def result(self) -> tvm.IRModule:
        wholes = {box.whole for box in self._boxes.values()}
        allocations = {binding.var: binding for binding in self._main.bindings if binding.var in wholes}
        bindings: list[Any] = []
        for n, binding in enumerate(self._main.bindings):
            if (call := self._main.calls.get(n)) is None:
                if binding.var not in wholes and self._main.tensors.get(binding.var) not in self._boxes:
                    bindings.append(binding)
                continue
            used = [box.whole if box else self._main.tensor(a) for a, box in self._boxed(call.args)]
            bindings += [allocations.pop(tensor) for tensor in used if tensor in allocations]
            if n in self._copied:
                bindings += [self._copy(part, box) for part, box in self._copied[n]]
            else:
                bindings.append(relax.VarBinding(binding.var, self._call(call)))
        main = self._mod["main"]
        body = relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body)
        changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        return with_main(self._builder.get(), changed)

    def _boxed(self, arguments: Sequence[Any]) -> list[tuple[Any, Box | None]]:
        return [(argument, self._boxes.get(self._main.tensor(argument))) for argument in arguments]

    def _call(self, call: Any) -> Any:
        arguments = self._boxed(call.args)
        if not any(box for _, box in arguments):
            return call
        return self._in_boxes(call.op, self._mod[call.op], arguments, str(call.op.name_hint))

    def _copy(self, part: Any, box: Box) -> Any:
        dtype = str(part.ty.dtype)
        source = te.placeholder(box.shape, dtype, "part")
        func = te.create_prim_func([source, te.compute(box.shape, lambda *axes: source[axes], "copy")])
        func = schedule_untuned(func.without_attr("global_symbol"), self._target)
        call = self._in_boxes((box.shape, dtype), func, [*self._boxed([part]), (box.whole, box)], "copy")
        return relax.VarBinding(relax.Var("_", call.ty), call)

    def _in_boxes(self, key: Any, func: tirx.PrimFunc, arguments: Sequence[tuple[Any, Box | None]], name: str) -> Any:
        """A call of the function whose arguments are boxes of other tensors, where they are."""
        shapes = {n: _shape(box.whole) for n, (_, box) in enumerate(arguments) if box}
        key = (key, tuple(shapes.items()))
        if key not in self._functions:
            built = for_boxes(func, shapes)
            self._functions[key] = self._builder.add_func(built, f"{name}{BOX}{len(self._functions)}")
        boxes = [[box.begin, *box.shape] if box else [] for _, box in arguments]
        given = [box.whole if box else argument for argument, box in arguments]
        attrs = tvm.ir.make_node("ir.DictAttrs", **{BOXES: boxes})
        return self._builder.normalize(relax.Call(self._functions[key], given, attrs))


def for_boxes(func: tirx.PrimFunc, shapes: Mapping[int, Sequence[int]]) -> tirx.PrimFunc:
    """`func` whose arguments at these places are boxes of tensors of these shapes. It is given where a box begins, and
    takes that for the beginning of the whole tensor: neighbours are as far apart."""
    parameters, new = list(func.params), {}
    for place, shape in shapes.items():
        old = parameters[place]
        extents = [tirx.IntImm(str(own.ty.dtype), extent) for own, extent in zip(old.ty.shape, shape, strict=True)]
        new[old] = parameters[place] = tirx.decl_buffer(extents, str(old.ty.dtype), old.name, layout=None)
    body = tvm_ffi.structural_map(func.body, ((tvm.ir.Var, lambda var: new.get(var, var)),))
    return tirx.PrimFunc(parameters, body, func.ret_type, func.attrs)


def _takes_boxes(func: tirx.PrimFunc, place: int) -> bool:
    """Whether an argument may be a box: the function gives no address of it to what does not know how it lies there."""
    parameter = func.params[place]
    given = [call for call in nodes(func.body, tvm.ir.Call) if takes_address(call)]
    given += [matched.source for block in nodes(func.body, s_tir.SBlock) for matched in block.match_buffers]
    return not any(variable.same_as(parameter) for part in given for variable in nodes(part, tvm.ir.Var))
