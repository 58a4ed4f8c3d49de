"""Preparation: turns an imported model into fused operators in the target's layout, ready to be scheduled.

`PASSES` lists all steps in order; `slipstream compile --explain` prints it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.relax import transform

from slipstream.frontends.model import Model
from slipstream.graph import concatenations, extremes, fast_math, group_norms
from slipstream.graph.batch_norm import fold_batch_norm
from slipstream.graph.booleans import with_booleans
from slipstream.graph.conv_transpose import rewrite_conv_transpose
from slipstream.graph.cpu.half_elements import compute_in_halves
from slipstream.graph.cpu.half_sums import HALF, sum_halves
from slipstream.graph.cpu.image_inputs import join_transposes
from slipstream.graph.cpu.integer_products import use_integers
from slipstream.graph.cpu.pair_products import use_pairs
from slipstream.graph.cpu.quantisation import spell_out_quantisation
from slipstream.graph.cpu.whole_groups import RANK_WITH_GROUPS, fill_groups
from slipstream.graph.cpu.whole_tiles import fill_tiles
from slipstream.graph.fold import fold_constants
from slipstream.graph.fuse import fuse_as_tvm
from slipstream.graph.gpu.exported_products import restore_products
from slipstream.graph.gpu.fuse import fuse_kernels
from slipstream.graph.gpu.parallel_matmuls import join_matmuls
from slipstream.graph.gpu.transposes import move_transposes
from slipstream.graph.layout import convert_layout
from slipstream.graph.pass_report import PassReport, sum_reports
from slipstream.graph.relax_walk import map_prim_funcs
from slipstream.graph.slices import use_slices
from slipstream.graph.storage_type import store_in
from slipstream.machine.target import Target
from slipstream.tvm_bridge.nodes import nodes

Change = Callable[[tvm.IRModule, Target], tvm.IRModule]


@dataclass(frozen=True)
class Pass:
    """One step of preparation. An `optional` one that TVM cannot do on a model is left out of it."""

    name: str
    why: str
    apply: Change
    optional: bool = False


def _tvm(*passes: tvm.ir.transform.Pass) -> Change:
    return lambda mod, _: tvm.transform.Sequential(list(passes))(mod)


_OF_BOTH = concatenations.LEGALIZERS | extremes.LEGALIZERS | group_norms.LEGALIZERS
_EXACT_LEGALIZERS = with_booleans(_OF_BOTH)
_LEGALIZERS = with_booleans(fast_math.LEGALIZERS | _OF_BOTH)


def _legalize(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    # A GPU has instructions for exp, tanh and similar functions.
    return transform.LegalizeOps({} if target.gpu else _LEGALIZERS)(mod)


def _legalize_exactly(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    return transform.LegalizeOps({} if target.gpu else _EXACT_LEGALIZERS)(mod)


def _fuse(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    if target.uses_tensor_cores:
        return fuse_kernels(mod, with_attention=target.has_triton)
    # In half precision an image is converted in the pass over it.
    return fuse_as_tvm(mod) if target.gpu or target.is_half else fuse_as_tvm(mod, join_transposes)


def _use_halves(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    if not target.is_half:
        return mod
    # A CPU converts bfloat16 in several instructions.
    stored = store_in(mod, target.dtype, with_maxima=target.gpu is not None or target.dtype == HALF)
    if target.gpu is not None or target.dtype != HALF:
        return stored
    return map_prim_funcs(stored, lambda func: compute_in_halves(sum_halves(func)))


def _mark_weights(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    # On a GPU a block copies what it needs into shared memory, in the order it reads it.
    return mod if target.gpu else map_prim_funcs(transform.AttachAttrLayoutFreeBuffers()(mod), _mark_safely)


def _mark_safely(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Remove the mark from weights that a function reads in more than one place, or where data say (a table), which TVM
    would store wrongly, from parts of a concatenation, and from what is added to the results of groups."""
    marked = [] if concatenations.is_in_place(func) else map(int, func.attrs.get("layout_free_buffers", []))
    reads: dict[int, int] = {n: 0 for n in marked if not _is_added_to_groups(func, func.params[n])}
    for load in _loads(func.body):
        for index in reads:
            if load.source.same_as(func.params[index]):
                reads[index] += 1 + sum(len(_loads(position)) for position in load.indices)
    once = [index for index, times in reads.items() if times == 1]
    return with_root_block(func.with_attr("layout_free_buffers", once))


def _is_added_to_groups(func: tirx.PrimFunc, weight: Any) -> bool:
    """Whether a constant has an axis for groups (`cpu/whole_groups.py`) and is not summed up: TVM would store it in the
    order of results that are cut off, and find each number by a division."""
    if len(weight.ty.shape) != RANK_WITH_GROUPS:
        return False
    sums = [block for block in nodes(func.body, s_tir.SBlock) if block.init is not None]
    return not any(load.source.same_as(weight) for block in sums for load in _loads(block.body))


def _loads(code: Any) -> list[Any]:
    return nodes(code, tvm.ir.expr.TensorLoad)


def with_root_block(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Add the root block that splitting off weights needs to opaque functions (scatter, sort) without one."""
    block = func.body.block if isinstance(func.body, s_tir.SBlockRealize) else None
    if block is not None and block.name_hint == "root":
        return func
    return func.with_body(s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", func.body)))


PASSES: tuple[Pass, ...] = (
    Pass(
        "batch norm",
        "fold it into the convolution before it; where there is none, leave one multiply and one add",
        lambda mod, _: fold_batch_norm(mod),
    ),
    Pass(
        "decompose",
        "drop dropout and other training-only operators, split composite ones",
        _tvm(transform.DecomposeOpsForInference(), transform.CanonicalizeBindings()),
    ),
    Pass(
        "quantisation",
        "on a CPU: rounding to 8 bits and back as element-wise operators, which the layout does not stop at",
        spell_out_quantisation,
    ),
    Pass(
        "transposed convolutions",
        "as ordinary ones with more channels, so that no product with an inserted zero is computed",
        lambda mod, _: rewrite_conv_transpose(mod),
        optional=True,
    ),
    Pass(
        "layout",
        "2-D convolutions in NHWC, so that the channels of one pixel fill a vector",
        lambda mod, _: convert_layout(mod),
        optional=True,
    ),
    Pass(
        "integer products",
        "on a CPU: convolutions and matmuls of 8-bit tensors in integers, weights packed for its dot products",
        use_integers,
    ),
    Pass(
        "pairs of products",
        "in bfloat16 on a CPU: weights of convolutions and matmuls in pairs, which its instructions multiply at once",
        use_pairs,
    ),
    Pass(
        "whole tiles",
        "convolutions with filters that fill no vectors, or rows that no tile divides, compute more, which is cut off",
        fill_tiles,
    ),
    Pass(
        "whole groups",
        "groups of filters that fill no vectors get an axis of their own and more filters, which are cut off",
        fill_groups,
        optional=True,
    ),
    Pass(
        "exported products",
        "for tensor cores: products in the shapes they have in the model, without what an exporter puts around them",
        lambda mod, target: restore_products(mod) if target.uses_tensor_cores else mod,
        optional=True,
    ),
    Pass(
        "transposes",
        "for tensor cores: moved behind the operators that read them, until two cancel",
        lambda mod, target: move_transposes(mod) if target.uses_tensor_cores else mod,
        optional=True,
    ),
    Pass(
        "slices",
        "the results of a split, and of a gather at one place, as slices, which the operators that read them compute",
        lambda mod, _: use_slices(mod),
        optional=True,
    ),
    Pass(
        "parallel matmuls",
        "for tensor cores: matmuls of one tensor, such as the projections of an attention, as one",
        lambda mod, target: join_matmuls(mod) if target.uses_tensor_cores else mod,
        optional=True,
    ),
    Pass(
        "legalize",
        "express every operator as a loop nest (TIR), exp and similar functions as polynomials that vectorise",
        _legalize,
    ),
    Pass("fold constants", "compute now what does not depend on the inputs", fold_constants),
    Pass(
        "fuse",
        "padding and element-wise neighbours join their convolution or matmul in one function",
        _fuse,
    ),
    Pass(
        "half precision",
        "if asked for: operators exchange float16 or bfloat16; a CPU multiplies halves, all else is in float32",
        _use_halves,
    ),
    Pass(
        "mark weights",
        "constant operands may be stored in whatever order the chosen program reads them (prepacking)",
        _mark_weights,
    ),
)


def prepare(
    mod: tvm.IRModule, target: Target, *, exact_functions: bool = False
) -> tuple[tvm.IRModule, list[PassReport]]:
    """Run `PASSES` over an imported module; the reports have the seconds of each.

    With `exact_functions`, exp and similar functions are the C library's, which does not vectorise.
    """
    reports = []
    with target.tvm:
        for step in PASSES:
            started = time.perf_counter()
            skipped = ""
            apply = _legalize_exactly if exact_functions and step.apply is _legalize else step.apply
            try:
                mod = apply(mod, target)
            except Exception as error:
                if not step.optional:
                    raise
                skipped = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            reports.append(PassReport(step.name, step.why, time.perf_counter() - started, skipped))
    return mod, reports


def prepare_parts(
    model: Model, target: Target, *, exact_functions: bool = False
) -> tuple[tuple[tvm.IRModule, ...], list[PassReport]]:
    """What has to be compiled of a model, prepared; the seconds of a pass are those of all parts."""
    if model.finish is not None:
        return (model.module,), []
    prepared: list[tvm.IRModule] = []
    reports: list[PassReport] = []
    for part in model.compiled_parts:
        module, own = prepare(part.module, target, exact_functions=exact_functions)
        prepared.append(module)
        reports = [sum_reports(*pair) for pair in zip(reports, own, strict=True)] if reports else own
    return tuple(prepared), reports
