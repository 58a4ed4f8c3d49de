"""The forms of an operator: as it stands, in vectors or in tiles, and, for a 3x3 convolution, by Winograd's method.

A form is a function that computes the same in other blocks. Our sketches start from one form or another and are
searched side by side. Which of them an operator has untuned is decided here, by a rule from measurements
(docs/winograd.md).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from tvm import s_tir, tirx

from slipstream.graph.cpu.default_schedule import default_sketch, schedule_default
from slipstream.graph.cpu.tile_schedule import tile_sketch
from slipstream.graph.schedule_blocks import start_schedule
from slipstream.graph.winograd.form import Convolution, find_convolution, winograd_form
from slipstream.graph.winograd.schedule import NEAR_BYTES, schedule_winograd
from slipstream.machine.target import Target

DIRECT = ""
# Outputs to a side of a tile, by form.
TILES = {"winograd2": 2, "winograd4": 4}
_LARGEST_OF_HALVES = 2

# Larger tiles save more multiplications but have more weights, which a running model reads from memory. For images of
# fewer pixels than these, tiles of 4 x 4 outputs, or of 2 x 2, are not faster than smaller ones. Cores with short
# vectors take longer to multiply, and no longer to read; many of them are as fast as a few with long ones.
_FEWEST_PIXELS = {"winograd4": 17 * 17, "winograd2": 12 * 12}
_FEWEST_PIXELS_OF_LANES = {
    4: {"winograd4": 7 * 7, "winograd2": 12 * 12},
    8: {"winograd4": 14 * 14, "winograd2": 7 * 7},
}
_FEW_CORES = 4
# With fewer multiplications than this, starting the three stages on the cores takes longer than the work.
_FEWEST_MULTIPLICATIONS = 5_000_000
# Least tiles per core to distribute work by tiles: with fewer, the shares are uneven.
_TILES_PER_CORE = 8


@dataclass(frozen=True)
class Start:
    """A sketch of ours with good decisions, as a schedule, and the form it starts from."""

    form: str
    schedule: s_tir.Schedule


def schedule_untuned(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """The default program of an operator, in its best form; `func` itself if there is none."""
    start = _preferred_start(func, target)
    if start is None:
        return schedule_default(func, target)
    scheduled = start.schedule.mod["main"].without_attr("global_symbol")
    symbol = func.attrs.get("global_symbol") if func.attrs else None
    return scheduled.with_attr("global_symbol", symbol) if symbol else scheduled


def untuned_start(func: tirx.PrimFunc, target: Target) -> Start | None:
    """The same as a schedule with a trace; None if the operator cannot be scheduled."""
    return _preferred_start(func, target) or direct_start(func, target)


def direct_start(func: tirx.PrimFunc, target: Target) -> Start | None:
    """The default program of the operator as it stands: with products of tiles where it can have them."""
    return _tile_start(func, target) or vector_start(func, target)


def vector_start(func: tirx.PrimFunc, target: Target) -> Start | None:
    """The same without tiles."""
    schedule = default_sketch(func, target)
    return None if schedule is None else Start(DIRECT, schedule)


def _tile_start(func: tirx.PrimFunc, target: Target) -> Start | None:
    schedule = tile_sketch(func, target)
    return None if schedule is None else Start(DIRECT, schedule)


def winograd_starts(func: tirx.PrimFunc, target: Target) -> list[Start]:
    """All our sketches in Winograd's form."""
    starts = [_winograd_start(func, form, by_tiles, target) for form in TILES for by_tiles in (True, False)]
    return [start for start in starts if start is not None]


def forms_of(func: tirx.PrimFunc, target: Target) -> frozenset[str]:
    """The names of the forms an operator has."""
    return frozenset(form for form in (DIRECT, *TILES) if function_in(form, func, target) is not None)


def function_in(form: str, func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """`func` in the form of that name; None if it has none. On a GPU there is only the direct one."""
    if form == DIRECT:
        return func
    if form not in tiles_of(target) or target.gpu is not None:
        return None
    return winograd_form(func, TILES[form], target)


def tiles_of(target: Target) -> dict[str, int]:
    """`TILES` that a target can use: the transforms of larger ones cost more digits than halves have."""
    return {form: tile for form, tile in TILES.items() if not target.is_half or tile <= _LARGEST_OF_HALVES}


def _winograd_start(func: tirx.PrimFunc, form: str, by_tiles: bool, target: Target) -> Start | None:
    formed = function_in(form, func, target)
    if formed is not None:
        with contextlib.suppress(s_tir.schedule.ScheduleError):
            schedule = start_schedule(formed)
            if schedule_winograd(schedule, target, by_tiles=by_tiles):
                return Start(form, schedule)
    return None


def _preferred_start(func: tirx.PrimFunc, target: Target) -> Start | None:
    """The sketch to prefer to the one in vectors: of tiles, or Winograd's where that is clearly faster."""
    if (tiled := _tile_start(func, target)) is not None:
        return tiled
    convolution = find_convolution(func)
    if convolution is None or not _is_worthwhile(convolution, target):
        return None
    pixels = convolution.height * convolution.width
    limits = _fewest_pixels(target)
    usable = tiles_of(target)
    form = next((form for form, fewest in limits.items() if pixels >= fewest and form in usable), DIRECT)
    if form == DIRECT:
        return None
    tiles = convolution.tiles(TILES[form])
    # The larger transformed tensor is distributed over the cores; every core may read weights that fit the cache.
    by_tiles = tiles > convolution.filters or (
        convolution.weight_bytes(TILES[form]) <= NEAR_BYTES and tiles >= _TILES_PER_CORE * target.threads
    )
    return _winograd_start(func, form, by_tiles, target)


def _fewest_pixels(target: Target) -> dict[str, int]:
    """Of 8 lanes on many cores nothing was measured: those of long vectors count, whose forms have smaller weights."""
    if target.vector_lanes == 8 and target.threads > _FEW_CORES:
        return _FEWEST_PIXELS
    return _FEWEST_PIXELS_OF_LANES.get(target.vector_lanes, _FEWEST_PIXELS)


def _is_worthwhile(convolution: Convolution, target: Target) -> bool:
    lanes = target.vector_elements
    whole_vectors = convolution.channels % lanes == convolution.filters % lanes == 0
    return whole_vectors and convolution.multiplications >= _FEWEST_MULTIPLICATIONS
