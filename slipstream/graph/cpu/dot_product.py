"""Dot products of CPUs, of bytes and of bfloat16, as TVM's tensor intrinsics, and which contractions can use them.

Weights are stored in this order: for one vector of filters and four (two) neighbouring reduction steps, the four (two)
weights of a filter beside each other.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T  # noqa: N812

from slipstream.graph.schedule_blocks import split_by_kind
from slipstream.machine.dot_product import (
    AVX512_BF16,
    AVX512_VNNI,
    AVX_VNNI,
    SDOT,
    SDOT_OF_CHANNELS,
    DotProduct,
    dot_product_of,
    pair_product_of,
)
from slipstream.machine.target import Target
from slipstream.tvm_bridge.intrinsics import quick_inspect_stack
from slipstream.tvm_bridge.nodes import nodes

# What stands for the instruction for bfloat16 until code is generated.
PAIR_PRODUCTS = "slipstream_pair_products"
_PAIR_PRODUCTS_CODE = f"""
define <16 x float> @{PAIR_PRODUCTS}(<16 x float> %sums, <16 x i32> %data, <16 x i32> %weights) {{
  %a = bitcast <16 x i32> %data to <32 x bfloat>
  %b = bitcast <16 x i32> %weights to <32 x bfloat>
  %sum = call <16 x float> @{AVX512_BF16.instruction}(<16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %sum
}}
declare <16 x float> @{AVX512_BF16.instruction}(<16 x float>, <32 x bfloat>, <32 x bfloat>)
"""
_PURE_EXTERN = tvm.ir.Op.get("tirx.call_pure_extern")


def find_dot_product(sch: s_tir.Schedule, block: Any, target: Target) -> tuple[DotProduct, int] | None:
    """The instruction for a contraction of packed weights, and how many products of a sum a step has."""
    stmt = sch.get(block)
    reads = [read.source for read in stmt.reads]
    types = [str(r.dtype) for r in reads]
    both = pair_product_of(target), dot_product_of(target)
    dot = next((each for each in both if each.instruction and types == [each.data_type, each.weight_type]), None)
    if dot is None:
        return None
    order = [int(extent) for extent in reads[1].shape[-2:]]
    if dot is SDOT and order == [SDOT_OF_CHANNELS.lanes, SDOT_OF_CHANNELS.group]:
        dot = SDOT_OF_CHANNELS
    if order != [dot.lanes, dot.group]:
        return None
    _, reductions = split_by_kind(sch, block)
    return (dot, dot.width(int(sch.get(reductions[-1]).extent))) if reductions else None


def intrinsic(dot: DotProduct, width: int) -> str:
    """The name under which TVM has the instruction for `width` products a lane."""
    kind = dot.instruction.split(".")[1] if dot.data_type != "bfloat16" else dot.data_type
    return f"slipstream.dot.{kind}.{dot.lanes}x{width}"


def use_pair_instruction(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Lowered code with the instruction for bfloat16, a type that TVM's code generator does not have: it is in a
    function that LLVM puts in the place of its calls."""
    externs = [call for call in nodes(func.body, tvm.ir.Call) if call.op == _PURE_EXTERN]
    if not any(str(call.args[0].value) == PAIR_PRODUCTS for call in externs):
        return func
    code = tvm.ir.StringImm(_PAIR_PRODUCTS_CODE)
    return func.with_body(tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", code, func.body))


def _register(dot: DotProduct, width: int) -> None:
    lanes, group = dot.lanes, dot.group
    groups = width // group
    sums_type, weight_type = dot.sum_type, dot.weight_type
    sums = f"{sums_type}x{lanes}"

    def products(data: Any, weights: Any, result: Any) -> Any:
        total = result.vload([0], sums)
        if dot is AVX512_BF16:
            pair = T.reinterpret(data.vload([0], f"{dot.data_type}x{group}"), dtype="int32")
            values = T.reinterpret(weights.vload([0, 0, 0], f"{weight_type}x{lanes * group}"), dtype=f"int32x{lanes}")
            return T.call_pure_extern(sums, PAIR_PRODUCTS, total, T.broadcast(pair, lanes), values)
        words = T.reinterpret(
            data.vload([0], f"{dot.data_type}x{width}"), dtype=f"int32x{groups}" if groups > 1 else "int32"
        )
        for place in range(groups):
            same = T.Shuffle([words] * (lanes // groups), [place] * lanes) if groups > 1 else T.broadcast(words, lanes)
            values = weights.vload([place, 0, 0], f"int8x{lanes * group}")
            repeated = T.reinterpret(same, dtype=f"int8x{lanes * group}")
            # SDOT is used by element only if the data come second; VNNI's unsigned operand is the first.
            operands = (values, repeated) if dot.data_type == "int8" else (repeated, values)
            total = T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(dot.instruction), total, *operands, dtype=sums)
        return total

    with quick_inspect_stack():

        @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
        def description(a: T.handle, b: T.handle, c: T.handle) -> None:
            data = T.match_buffer(a, (width,), dtype=dot.data_type, offset_factor=1)
            weights = T.match_buffer(b, (groups, lanes, group), dtype=weight_type, offset_factor=1)
            result = T.match_buffer(c, (lanes,), dtype=sums_type, offset_factor=1)
            with T.sblock("root"):
                T.reads(result[0:lanes], data[0:width], weights[0:groups, 0:lanes, 0:group])
                T.writes(result[0:lanes])
                for lane, step in T.grid(lanes, width):
                    with T.sblock("update"):
                        i, k = T.axis.remap("SR", [lane, step])
                        result[i] = result[i] + T.cast(data[k], sums_type) * T.cast(
                            weights[k // group, i, k % group], sums_type
                        )

        @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
        def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
            data = T.match_buffer(a, (width,), dtype=dot.data_type, offset_factor=1)
            weights = T.match_buffer(b, (groups, lanes, group), dtype=weight_type, offset_factor=1)
            result = T.match_buffer(c, (lanes,), dtype=sums_type, offset_factor=1)
            with T.sblock("root"):
                T.reads(result[0:lanes], data[0:width], weights[0:groups, 0:lanes, 0:group])
                T.writes(result[0:lanes])
                result[T.ramp(T.int32(0), 1, lanes)] = products(data, weights, result)

    s_tir.TensorIntrin.register(intrinsic(dot, width), description, implementation, override=True)


def _register_sdot_of_channels() -> None:
    """16 channels: each register of sums takes four bytes of the data, of which a lane's weights choose one."""
    name = SDOT.instruction

    def part(data: Any, weights: Any, result: Any, place: int) -> Any:
        words = T.reinterpret(data.vload([0], "int8x16"), dtype="int32x4")
        repeated = T.reinterpret(T.Shuffle([words], [place] * 4), dtype="int8x16")
        values = weights.vload([4 * place, 0], "int8x16")
        sums = result.vload([4 * place], "int32x4")
        return T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(name), sums, values, repeated, dtype="int32x4")

    with quick_inspect_stack():

        @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
        def description(a: T.handle, b: T.handle, c: T.handle) -> None:
            data = T.match_buffer(a, (16,), dtype="int8", offset_factor=1)
            weights = T.match_buffer(b, (16, 4), dtype="int8", offset_factor=1)
            result = T.match_buffer(c, (16,), dtype="int32", offset_factor=1)
            with T.sblock("root"):
                T.reads(result[0:16], data[0:16], weights[0:16, 0:4])
                T.writes(result[0:16])
                for lane, step in T.grid(16, 4):
                    with T.sblock("update"):
                        i, k = T.axis.remap("SR", [lane, step])
                        result[i] = result[i] + T.cast(data[i // 4 * 4 + k], "int32") * T.cast(weights[i, k], "int32")

        @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
        def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
            data = T.match_buffer(a, (16,), dtype="int8", offset_factor=1)
            weights = T.match_buffer(b, (16, 4), dtype="int8", offset_factor=1)
            result = T.match_buffer(c, (16,), dtype="int32", offset_factor=1)
            with T.sblock("root"):
                T.reads(result[0:16], data[0:16], weights[0:16, 0:4])
                T.writes(result[0:16])
                result[T.ramp(T.int32(0), 1, 4)] = part(data, weights, result, 0)
                result[T.ramp(T.int32(4), 1, 4)] = part(data, weights, result, 1)
                result[T.ramp(T.int32(8), 1, 4)] = part(data, weights, result, 2)
                result[T.ramp(T.int32(12), 1, 4)] = part(data, weights, result, 3)

    s_tir.TensorIntrin.register(intrinsic(SDOT_OF_CHANNELS, 4), description, implementation, override=True)


# All of them: a stored program names one without saying what it is.
for _dot in (SDOT, AVX512_VNNI, AVX_VNNI, AVX512_BF16):
    for _width in _dot.widths:
        _register(_dot, _width)
_register_sdot_of_channels()
