"""MetaSchedule's sketches for tensor cores: matmuls, and convolutions read as matmuls, in pieces of 16 x 16 x 16.

They are points of the same space as the others, with tiles counted in such pieces.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from slipstream.tvm_intrinsics import (
    WMMA,
    WMMA_COMPUTE_TRANSPOSED,
    WMMA_LOAD_B_TRANSPOSED,
    import_tensor_core_intrinsics,
)

_TRANSPOSED = {**WMMA, "load_b": WMMA_LOAD_B_TRANSPOSED, "compute": WMMA_COMPUTE_TRANSPOSED}


def multiplies_halves(func: tirx.PrimFunc) -> bool:
    """Whether a function multiplies float16 and adds up in float32, as tensor cores do."""
    found: list[Any] = []

    def note(block: Any) -> None:
        reads = [str(region.source.dtype) for region in block.reads]
        writes = [str(region.source.dtype) for region in block.writes]
        if block.init is not None and reads.count("float16") >= 2 and writes == ["float32"]:
            found.append(block)

    tvm_ffi.structural_walk(func.body, ((s_tir.SBlock, note),))
    return bool(found)


def make_generator(ms: Any, *, pipelined: bool) -> Any:
    """MetaSchedule's rules for CUDA with those for tensor cores before them; `pipelined` fetches tiles ahead."""
    import_tensor_core_intrinsics()
    custom, *others = ms.schedule_rule.ScheduleRule.create("cuda")
    reuse = ms.schedule_rule.ReuseType
    rule = ms.schedule_rule.MultiLevelTilingTensorCore(
        intrin_groups=[WMMA, _TRANSPOSED],
        structure="SSSRRSRS",
        tile_binds=["blockIdx.y", "blockIdx.x", "threadIdx.y"],
        max_innermost_factor=4,
        vector_load_lens=[1, 2, 3, 4, 8, 16],
        reuse_read=reuse(req="must", levels=[4], scope="shared.dyn"),
        reuse_write=reuse(req="must", levels=[2], scope="shared.dyn"),
        use_software_pipeline=pipelined,
    )
    return ms.space_generator.PostOrderApply(
        sch_rules=[custom, rule, *others], postprocs="cuda-tensorcore", mutator_probs="cuda-tensorcore"
    )
