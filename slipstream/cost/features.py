"""What a cost model sees of a program: TVM's per-store features, the ones its own cost model learns from.

For every statement that writes a buffer: how often it runs, its arithmetic, its loops (vectorised, unrolled,
parallel), and for each buffer it touches the bytes, the strides and the distance to the next reuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from slipstream.cost.types import Features
from slipstream.machine.target import Target, available_cores
from slipstream.tvm_bridge.intrinsics import import_intrinsics

if TYPE_CHECKING:
    import tvm

WIDTH = 164


def extract(modules: Sequence[tvm.IRModule], target: Target) -> list[Features]:
    """The features of scheduled modules, in their order. The same program has the same features every time."""
    if not modules:
        return []
    import_intrinsics()
    from tvm import s_tir
    from tvm.s_tir.meta_schedule import MeasureCandidate, TuneContext
    from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

    context = TuneContext(target=target.tvm, num_threads=min(available_cores(), len(modules)))
    # The extractor wants schedules and looks only at their modules.
    schedules = [s_tir.Schedule(module, debug_mask=0, error_render_level="none") for module in modules]
    candidates = [MeasureCandidate(schedule, []) for schedule in schedules]
    return [rows.numpy().astype(np.float32) for rows in PerStoreFeature().extract_from(context, candidates)]


def extract_possible(modules: Sequence[tvm.IRModule], target: Target) -> list[Features | None]:
    """As `extract`, with None for programs TVM's extractor gives up on (one that stores nothing but constants)."""
    try:
        return list(extract(modules, target))
    except RuntimeError:
        if len(modules) == 1:
            return [None]
        return [features for module in modules for features in extract_possible([module], target)]
