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
# A core knows the addresses of so many pages at once.
_PAGES, _PAGE_BYTES = 64, 1 << 12
# Pieces share their border, so that each row of the image is copied several times: up to so many.
_MOST_COPIES = 3


def find_border(sch: s_tir.Schedule, anchor: Any) -> Any | None:
    """The block that puts a border around the image of a depthwise convolution; None for all else."""
    stmt = sch.get(anchor)
    spatial = [iter_var.var for iter_var in stmt.iter_vars if int(iter_var.iter_type) == DATA_PARALLEL]
    if len(spatial) != 4 or not uses(stmt.reads[0], spatial[-1]):
        return None
    found = [block for block in sch.get_producers(anchor) if pads_rows(sch, block)]
    return found[0] if len(found) == 1 else None


def share_rows(sch: s_tir.Schedule, anchor: Any, tile: Tile, target: Target) -> list[int]:
    """How many register tiles a piece has along batch, height and width: whole rows, as many as stay near.

    A piece has some channels of every pixel of its rows, and so reads from as many pages as all channels have.
    """
    (batch, height, width, channels), reductions = split_by_kind(sch, anchor)
    across = extent_of(sch, width) // (tile.rows if tile.row_axis == 2 else 1)
    down = extent_of(sch, height) // (tile.rows if tile.row_axis == 1 else 1)
    at_once = tile.vectors * tile.lanes
    image = sch.get(anchor).reads[0].source
    size = tvm.DataType(str(image.dtype)).itemsize
    image_height, image_width = int(image.shape[1]), int(image.shape[2])
    window = extent_of(sch, reductions[0])
    stride = (image_height - window) / max(1, extent_of(sch, height) - 1)
    others = extent_of(sch, batch) * extent_of(sch, channels) // at_once
    pages = image_width * min(1.0, int(image.shape[3]) * size / _PAGE_BYTES)

    def rows_read(tiles: int) -> float:
        return (tiles * extent_of(sch, height) / down - 1) * stride + window

    fitting = [
        tiles
        for tiles in divisors(down, down)
        if others * down // tiles >= _PIECES_PER_CORE * target.threads
        and rows_read(tiles) * image_width * at_once * size <= _NEAR_BYTES
    ]
    few_copies = [tiles for tiles in fitting if down / tiles * rows_read(tiles) <= _MOST_COPIES * image_height]
    few_pages = [tiles for tiles in few_copies if rows_read(tiles) * pages <= _PAGES]
    rows = max(few_pages) if few_pages else min(few_copies, default=1)
    return [1, rows, across]
