"""What makes MetaSchedule's sketches for GPUs: its rules for CUDA, and where they can be used, those for tensor cores.

Tensor cores multiply pieces of 16 x 16 halves. Their sketches take matmuls, and convolutions read as matmuls; they are
points of the same space as the others, with tiles counted in such pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import s_tir, tirx

from slipstream.tvm_bridge.intrinsics import (
    WMMA,
    WMMA_COMPUTE_TRANSPOSED,
    WMMA_LOAD_B_TRANSPOSED,
    import_intrinsics,
    import_tensor_core_intrinsics,
)
from slipstream.tvm_bridge.nodes import nodes

# What tensor cores' programs ask for at launch; others declare theirs, of which a program may have 48 KiB.
_SHARED = "shared.dyn"
_TRANSPOSED = {**WMMA, "load_b": WMMA_LOAD_B_TRANSPOSED, "compute": WMMA_COMPUTE_TRANSPOSED}
_TILING = 1  # the place among MetaSchedule's rules of the one that tiles


def generators(func: tirx.PrimFunc) -> list[Callable[[], Any]]:
    """What makes sketches of an operator, tensor cores first where they can be used.

    Without saying so, every operator would get the rules for tensor cores, with intrinsics that take most of a minute
    to import.
    """
    if not multiplies_halves(func):
        return [_ordinary]
    return [*(partial(_tensor_cores, pipelined) for pipelined in (False, True)), _ordinary]


def multiplies_halves(func: tirx.PrimFunc) -> bool:
    """Whether a function multiplies float16 and adds up in float32, as tensor cores do."""
    for block in nodes(func.body, s_tir.SBlock):
        reads = [str(region.source.dtype) for region in block.reads]
        writes = [str(region.source.dtype) for region in block.writes]
        if block.init is not None and reads.count("float16") >= 2 and writes == ["float32"]:
            return True
    return False


def _ordinary() -> Any:
    return _metaschedule().space_generator.PostOrderApply(sch_rules="cuda", postprocs="cuda", mutator_probs="cuda")


def _tensor_cores(pipelined: bool) -> Any:
    """`pipelined` ones fetch the next tiles and pieces while they multiply."""
    ms = _metaschedule()
    import_tensor_core_intrinsics()
    tiling = ms.schedule_rule.MultiLevelTilingTensorCore(
        intrin_groups=[WMMA, _TRANSPOSED],
        structure="SSSRRSRS",
        tile_binds=["blockIdx.y", "blockIdx.x", "threadIdx.y"],
        max_innermost_factor=4,
        vector_load_lens=[1, 2, 3, 4, 8, 16],
        reuse_read=ms.schedule_rule.ReuseType(req="must", levels=[4], scope=_SHARED),
        reuse_write=ms.schedule_rule.ReuseType(req="must", levels=[2], scope=_SHARED),
        use_software_pipeline=pipelined,
    )
    rules = list(ms.schedule_rule.ScheduleRule.create("cuda"))
    rules.insert(_TILING, tiling)
    return ms.space_generator.PostOrderApply(
        sch_rules=rules, postprocs="cuda-tensorcore", mutator_probs="cuda-tensorcore"
    )


def _metaschedule() -> Any:
    import_intrinsics()
    from tvm.s_tir import meta_schedule

    return meta_schedule
