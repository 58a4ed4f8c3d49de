"""Depthwise convolutions: how many rows of the image to compute at once, with the border they need.

They do so little arithmetic per element that a padded copy of the whole image, as other convolutions make, would take
about as long as the convolution itself.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir

from slipstream.graph.cpu.register_tile import Tile
from slipstream.graph.schedule_blocks import DATA_PARALLEL, divisors, extent_of, pads_rows, split_by_kind, uses
from slipstream.machine.target import Target

_NEAR_BYTES = 1 << 17
_PIECES_PER_CORE = 4


def find_border(sch: s_tir.Schedule, anchor: Any) -> Any | None:
    """The block that puts a border around the image of a depthwise convolution; None for all else."""
    stmt = sch.get(anchor)
    spatial = [iter_var.var for iter_var in stmt.iter_vars if int(iter_var.iter_type) == DATA_PARALLEL]
    if len(spatial) != 4 or not uses(stmt.reads[0], spatial[-1]):
        return None
    found = [block for block in sch.get_producers(anchor) if pads_rows(sch, block)]
    return found[0] if len(found) == 1 else None


def share_rows(sch: s_tir.Schedule, anchor: Any, tile: Tile, target: Target) -> list[int]:
    """How many register tiles a piece has along batch, height and width: whole rows, as many as stay near."""
    (batch, height, width, channels), _ = split_by_kind(sch, anchor)
    across = extent_of(sch, width) // (tile.rows if tile.row_axis == 2 else 1)
    down = extent_of(sch, height) // (tile.rows if tile.row_axis == 1 else 1)
    at_once = tile.vectors * tile.lanes
    image = sch.get(anchor).reads[0].source
    size = tvm.DataType(str(image.dtype)).itemsize
    row_bytes = int(image.shape[2]) * at_once * size * int(image.shape[1]) / extent_of(sch, height)
    others = extent_of(sch, batch) * extent_of(sch, channels) // at_once
    fitting = [
        rows
        for rows in divisors(down, max(1, int(_NEAR_BYTES / row_bytes)))
        if others * down // rows >= _PIECES_PER_CORE * target.threads
    ]
    return [1, max(fitting, default=1), across]
