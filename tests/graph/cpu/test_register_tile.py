"""The register tile of a default program: as many sums as the registers hold, loaded with few instructions."""

from __future__ import annotations

import pytest

from slipstream.graph.cpu.default_schedule import find_contraction
from slipstream.graph.cpu.depthwise import share_rows
from slipstream.graph.cpu.register_tile import choose_tile
from slipstream.graph.schedule_blocks import start_schedule
from slipstream.machine.target import Target
from tests.graph.test_winograd import Convolution, function

AVX2 = Target("x86_64", "znver3", ("avx2", "fma"), (), 2)
AVX512 = Target("x86_64", "cascadelake", ("avx2", "avx512f", "fma"), (), 2)


@pytest.mark.parametrize(
    ("side", "filters", "target", "tile"),
    [
        (56, 144, AVX2, (4, 2)),  # 4 x 3 would need all registers
        (14, 64, AVX2, (2, 4)),  # 7 x 1 has as many loads, and fewer sums
        (7, 64, AVX2, (7, 1)),
        (14, 256, AVX512, (14, 2)),
        (7, 256, AVX512, (7, 4)),
    ],
)
def test_of_a_convolution(side: int, filters: int, target: Target, tile: tuple[int, int]) -> None:
    sch = start_schedule(function(Convolution(side, side, 96, filters)))
    chosen = choose_tile(sch, find_contraction(sch), target)
    assert (chosen.rows, chosen.vectors) == tile
    assert chosen.lanes == target.vector_lanes


@pytest.mark.parametrize(("target", "tile"), [(AVX512, (7, 2)), (AVX2, (2, 4))])
def test_of_a_depthwise_convolution(target: Target, tile: tuple[int, int]) -> None:
    """Each sum loads a factor of its own: a tile of 14 x 2 has no fewer loads, and was slower."""
    sch = start_schedule(function(Convolution(14, 14, 384, 384, groups=384)))
    chosen = choose_tile(sch, find_contraction(sch), target)
    assert (chosen.rows, chosen.vectors) == tile


@pytest.mark.parametrize(
    ("side", "channels", "rows"),
    [
        (7, 960, 1),  # a page for every pixel
        (14, 384, 7),
        (56, 64, 14),  # a page for sixteen pixels
    ],
)
@pytest.mark.parametrize("target", [AVX512, AVX2], ids=["AVX-512", "AVX2"])
def test_a_piece_of_a_depthwise_convolution_reads_few_pages(
    side: int, channels: int, rows: int, target: Target
) -> None:
    sch = start_schedule(function(Convolution(side, side, channels, channels, groups=channels)))
    anchor = find_contraction(sch)
    tile = choose_tile(sch, anchor, target)
    assert share_rows(sch, anchor, tile, target) == [1, rows, side // tile.rows]
