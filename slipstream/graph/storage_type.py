"""Half precision as a type of storage: operators exchange float16 or bfloat16 and compute in float32.

Of a contraction both operands are rounded, because tensor cores multiply halves; products are added up in float32. On a
CPU `graph/cpu/half_sums.py` changes that for float16.
Everything else, such as norms, softmax and activations, is computed in float32 inside its kernel. Weights are rounded
at compile time. The model's inputs and outputs keep their types, as do small constants, such as a bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from slipstream.graph.describe.blocks import Block, TensorLoad, blocks_of, factors_of
from slipstream.graph.gpu.kernel_facts import reads_by_index
from slipstream.graph.relax_walk import bindings_of_main, is_call_tir, is_constant

_FLOAT = "float32"
_RESHAPE = tvm.ir.Op.get("relax.reshape")
_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")
# Constants that no contraction reads stay in float32 below this: reading them costs nothing.
_LARGE_CONSTANT = 1 << 16
_EXACT = ("max", "min")  # reductions that rounding on the way does not change


def store_in(mod: tvm.IRModule, half: str, *, with_maxima: bool = True) -> tvm.IRModule:
    """A fused module whose kernels exchange tensors of type `half` in the place of float32; maxima are found in it too,
    unless converting costs more."""
    main = mod["main"]
    change = _Exchange(mod, half, _EXACT if with_maxima else ())
    blocks = [type(block)([change.binding(binding) for binding in block.bindings]) for block in main.body.blocks]
    changed = relax.Function(main.params, relax.SeqExpr(blocks, main.body.body), main.ret_ty, attrs=main.attrs)
    change.builder.update_func(mod.get_global_var("main"), changed)
    return relax.transform.DeadCodeElimination()(change.builder.finalize())


class _Exchange:
    """Rewrites the bindings of `main`, in their order."""

    def __init__(self, mod: tvm.IRModule, half: str, in_half: tuple[str, ...]) -> None:
        self.builder = relax.BlockBuilder(mod)
        self._mod, self._half, self._in_half = mod, half, in_half
        self._narrow = _exchanged(mod)
        self._new: dict[Any, Any] = {}
        self._variants: dict[tuple[Any, tuple[bool, ...]], Any] = {}

    def binding(self, binding: Any) -> Any:
        value, var = binding.value, binding.var
        new = _with_type(var, self._half) if var in self._narrow else var
        self._new[var] = new
        if is_call_tir(value):
            value = self._call(value, new)
        elif new is not var:
            value = relax.op.reshape(self._new.get(value.args[0], value.args[0]), var.ty.shape)
        return (
            relax.VarBinding(new, self.builder.normalize(value)) if isinstance(binding, relax.VarBinding) else binding
        )

    def _call(self, call: Any, var: Any) -> Any:
        """The call of the variant of its function that reads and writes the types its arguments now have."""
        function, arguments = call.args[0], list(call.args[1].fields)
        func = self._mod[function]
        if not _can_change(func, var):
            return call
        operands = _operands(func)
        halved = [
            self._rounds(a, any(operand.same_as(parameter) for operand in operands))
            if is_constant(a)
            else a in self._narrow
            for a, parameter in zip(arguments, func.params, strict=False)
        ]
        key = (function, (*halved, str(var.ty.dtype) == self._half))
        if key not in self._variants:
            variant = in_storage_type(func, key[1], self._half, self._in_half)
            self._variants[key] = self.builder.add_func(variant, function.name_hint)
        given = [
            _rounded_constant(a, self._half) if is_half and is_constant(a) else self._new.get(a, a)
            for a, is_half in zip(arguments, halved, strict=True)
        ]
        return relax.call_tir(self._variants[key], given, var.ty)

    def _rounds(self, constant: Any, is_operand: bool) -> bool:
        """Whether a constant is stored as halves: not if a number of it is none."""
        if str(constant.ty.dtype) != _FLOAT:
            return False
        values = constant.value.numpy()
        if not is_operand and values.size < _LARGE_CONSTANT:
            return False
        return self._half != "float16" or bool(np.abs(values).max(initial=0.0) < np.finfo(np.float16).max)


def _exchanged(mod: tvm.IRModule) -> set[Any]:
    """The variables that hold halves from now on: all float32 ones between kernels, and views of them."""
    main = mod["main"]
    fixed, candidates, views = set(main.params), set(), []
    fixed.update(relax.analysis.free_vars(main.body.body))
    for binding in bindings_of_main(mod):
        value, var = binding.value, binding.var
        if is_call_tir(value) and _can_change(mod[value.args[0]], var):
            candidates.add(var)
        elif isinstance(value, relax.Call) and value.op == _RESHAPE:
            candidates.add(var)
            views.append((var, value.args[0]))
        else:
            fixed.update([var, *relax.analysis.free_vars(value)])
    for _ in views:
        for pair in views:
            if any(var in fixed for var in pair):
                fixed.update(pair)
    return {var for var in candidates - fixed if str(var.ty.dtype) == _FLOAT}


def _can_change(func: tirx.PrimFunc, result: Any) -> bool:
    root = getattr(func.body, "block", None)
    return (
        isinstance(result.ty, relax.TensorType)
        and getattr(root, "name_hint", "") == "root"
        and all(isinstance(parameter.ty, tirx.buffer.BufferType) for parameter in func.params)
        and reads_by_index(func)
    )


def _with_type(var: Any, dtype: str) -> Any:
    kind = relax.DataflowVar if isinstance(var, relax.DataflowVar) else relax.Var
    return kind(var.name, relax.TensorType(var.ty.shape, dtype))


def _rounded_constant(constant: Any, half: str) -> Any:
    values = constant.value.numpy()
    if half == "float16":
        return relax.const(values.astype(np.float16))
    import ml_dtypes

    return relax.const(tvm.runtime.tensor(values.astype(ml_dtypes.bfloat16)))


def in_storage_type(
    func: tirx.PrimFunc, halved: tuple[bool, ...], half: str, in_half: tuple[str, ...] = _EXACT
) -> tirx.PrimFunc:
    """`func` with the parameters that `halved` says, the operands of contractions and reductions `in_half` in type
    `half`."""
    root = func.body.block
    operands = _operands(func)
    new = {
        parameter: _buffer(parameter, half)
        for parameter, is_half in zip(func.params, halved, strict=True)
        if is_half and str(parameter.ty.dtype) == _FLOAT
    }
    parameters = [new.get(parameter, parameter) for parameter in func.params]
    new.update({b: _buffer(b, half) for b in root.alloc_buffers if any(o.same_as(b) for o in operands)})
    for store in (block.store for block in blocks_of(func) if block.store is not None):
        is_inner = any(store.buffer.same_as(inner) for inner in root.alloc_buffers)
        if is_inner and isinstance(store.value, TensorLoad) and store.value.source in new:
            new.setdefault(store.buffer, _buffer(store.buffer, half))  # what only moves halves is halves
    result, allocated, after = func.params[-1], [], []
    if result in new and any(b.writes(result) and b.reductions and b.reducer not in in_half for b in blocks_of(func)):
        # A running total must not be rounded each time: it is copied into the result once.
        new[result] = tirx.decl_buffer(list(result.ty.shape), _FLOAT, f"{result.name}_sum")
        allocated, after = [new[result]], [rounding_copy(new[result], parameters[-1], half)]
    # What is computed from elements alone, such as a mask, may be as large as float32 can be.
    limits = half == "float16" and not any(block.reductions for block in blocks_of(func))
    changed = _Retype(new, operands, half, limits=limits).block(root)
    body = tirx.SeqStmt([changed.body, *after]) if after else changed.body
    block = s_tir.SBlock([], [], [], "root", body, None, [*changed.alloc_buffers, *allocated])
    return tirx.PrimFunc(parameters, s_tir.SBlockRealize([], True, block), func.ret_type, func.attrs)


def _operands(func: tirx.PrimFunc) -> list[Any]:
    """The float32 tensors whose products a function sums up."""
    found = [factor.source for block in blocks_of(func) for factor in factors_of(block)]
    return [buffer for buffer in found if str(buffer.ty.dtype) == _FLOAT]


def _buffer(like: Any, dtype: str) -> Any:
    return tirx.decl_buffer(list(like.ty.shape), dtype, like.name)


def rounding_copy(source: Any, to: Any, half: str, name: str = "rounded") -> Any:
    """A loop nest, its block called `name`, that rounds each element."""
    shape = list(to.ty.shape)
    axes, loops = ([tirx.Var(f"{name}{n}", e.ty) for n, e in enumerate(shape)] for name in ("v", "i"))
    zero, one = ([tirx.IntImm(str(e.ty.dtype), number) for e in shape] for number in (0, 1))
    within = [tvm.ir.Range.from_min_extent(*pair) for pair in zip(zero, shape, strict=True)]
    at = [tvm.ir.Range.from_min_extent(*pair) for pair in zip(axes, one, strict=True)]
    iterations = [tirx.IterVar(domain, axis, 0) for domain, axis in zip(within, axes, strict=True)]
    regions = [[tirx.BufferRegion(buffer, at)] for buffer in (source, to)]
    store = tirx.BufferStore(to, tirx.Cast(half, tirx.BufferLoad(source, axes)), axes)
    nest: Any = s_tir.SBlockRealize(loops, True, s_tir.SBlock(iterations, *regions, name, store))
    for loop, begin, extent in reversed(list(zip(loops, zero, shape, strict=True))):
        nest = tirx.For(loop, begin, extent, tirx.ForKind.SERIAL, nest)
    return nest


class _Retype:
    """Replaces buffers by those of another type, with conversions where elements are read and written."""

    def __init__(self, new: dict[Any, Any], operands: list[Any], half: str, *, limits: bool) -> None:
        self._new, self._half, self._limits = new, half, limits
        self._wide = [operand for operand in operands if operand not in new]

    def block(self, root: Any) -> Any:
        callbacks = ((TensorLoad, self._load), (tirx.BufferStore, self._store), (s_tir.SBlock, self._block))
        return tvm_ffi.structural_map(root, callbacks)

    def _load(self, load: Any) -> Any:
        if load.source not in self._new:
            return load
        loaded = tirx.BufferLoad(self._new[load.source], load.indices)
        return loaded if str(loaded.ty.dtype) == _FLOAT else tirx.Cast(_FLOAT, loaded)

    def _store(self, store: Any) -> Any:
        if store.buffer not in self._new:
            return store
        new = self._new[store.buffer]
        value = store.value if str(new.ty.dtype) == _FLOAT else self._rounded(store.value)
        return tirx.BufferStore(new, value, store.indices)

    def _rounded(self, value: Any) -> Any:
        if isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == self._half:
            return value.value
        if isinstance(value, tirx.FloatImm):  # the start of a maximum is the least number there is
            largest = float(tirx.max_value(self._half).value)
            return tirx.FloatImm(self._half, min(max(float(value.value), -largest), largest))
        if isinstance(value, tvm.ir.Call) and value.op == _IF_THEN_ELSE:  # padding and concatenation
            condition, yes, no = value.args
            return tirx.if_then_else(condition, self._rounded(yes), self._rounded(no))
        return tirx.Cast(self._half, self._within(value) if self._limits else value)

    def _within(self, value: Any) -> Any:
        """A finite number stays one: a mask of the least float32 must not become one of minus infinity."""
        largest = tirx.const(float(tirx.max_value(self._half).value), _FLOAT)
        is_finite = tirx.abs(value) <= tirx.max_value(_FLOAT)
        return tirx.Select(is_finite, tirx.max(tirx.min(value, largest), -largest), value)

    def _block(self, block: Any) -> Any:
        regions = (
            [tirx.BufferRegion(self._new.get(region.source, region.source), region.region) for region in each]
            for each in (block.reads, block.writes)
        )
        buffers = [self._new.get(buffer, buffer) for buffer in block.alloc_buffers]
        body, kept = self._with_rounded_operands(block), (block.match_buffers, block.annotations)
        return s_tir.SBlock(block.iter_vars, *regions, block.name_hint, body, block.init, buffers, *kept)

    def _with_rounded_operands(self, block: Any) -> Any:
        """Round operands that stay in float32, such as an input of the model, where they are read."""
        wide = [f for f in factors_of(Block(block)) if any(f.source.same_as(operand) for operand in self._wide)]
        if not wide:
            return block.body

        def rounded(load: Any) -> Any:
            is_operand = any(load.source.same_as(factor.source) for factor in wide)
            return tirx.Cast(_FLOAT, tirx.Cast(self._half, load)) if is_operand else load

        return tvm_ffi.structural_map(block.body, ((TensorLoad, rounded),))
