"""Instructions of CPUs that add several products of short numbers to each 32-bit lane.

Such an instruction multiplies four bytes of data, the same for all lanes, with four weights of each lane; or two
bfloat16. An AMX tile operation does the same for up to 16 rows of data and 16 such groups at once, with weights in the
same order.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.machine.target import Target


@dataclass(frozen=True)
class DotProduct:
    """How products of short numbers are computed on a target: filters in a vector, neighbouring products in a lane
    (`group`), the type data have to be in, and how many of them one load may bring (`widths`, the largest first).

    `instruction` is LLVM's name of it; empty where there is none, and then products of bytes are computed in float32.
    """

    instruction: str
    name: str
    lanes: int
    group: int
    data_type: str
    widths: tuple[int, ...]
    weight_type: str = "int8"
    sum_type: str = "int32"

    def width(self, length: int) -> int:
        """The most neighbouring products of a reduction over `length` that one step computes."""
        return next((width for width in self.widths if length % width == 0), 1)


# By element: one register of data serves four instructions.
SDOT = DotProduct("llvm.aarch64.neon.sdot.v4i32.v16i8", "SDOT", 4, 4, "int8", (16, 8, 4))
# The same for depthwise convolutions: of four weights in a lane, those for other channels are zero.
SDOT_OF_CHANNELS = DotProduct(SDOT.instruction, "SDOT", 16, 4, "int8", (4,))
AVX512_VNNI = DotProduct("llvm.x86.avx512.vpdpbusd.512", "AVX-512 VNNI", 16, 4, "uint8", (4,))
AVX_VNNI = DotProduct("llvm.x86.avx512.vpdpbusd.256", "AVX VNNI", 8, 4, "uint8", (4,))
# Without a tile or vector instruction of the target this only is an order of weights.
PAIRS = DotProduct("", "", 16, 2, "bfloat16", (2,), "bfloat16", "float32")
AVX512_BF16 = DotProduct(
    "llvm.x86.avx512bf16.dpbf16ps.512", "AVX512-BF16", 16, 2, "bfloat16", (2,), "bfloat16", "float32"
)


@dataclass(frozen=True)
class TileOperation:
    """An instruction that multiplies tiles: rows of up to 64 bytes of data times weights in the order of `DotProduct`
    of the same types, added to a tile of 16 columns. `name` is LLVM's without its prefix."""

    name: str
    feature: str
    group: int
    data_type: str
    weight_type: str
    sum_type: str

    @property
    def most_depth(self) -> int:
        """Products of a sum in one instruction."""
        return TILE_ROWS * self.group


# Of a tile register: rows, sums in a row, and how many registers there are.
TILE_ROWS, COLUMNS, TILE_REGISTERS = 16, 16, 8
TDPBUSD = TileOperation("tdpbusd", "amx-int8", 4, "uint8", "int8", "int32")
TDPBF16PS = TileOperation("tdpbf16ps", "amx-bf16", 2, "bfloat16", "bfloat16", "float32")
TILE_OPERATIONS = {operation.name: operation for operation in (TDPBUSD, TDPBF16PS)}


def tile_operation_of(target: Target, data_type: str) -> TileOperation | None:
    """The instruction that multiplies tiles of this type on the target."""
    found = [each for each in TILE_OPERATIONS.values() if each.data_type == data_type]
    return next((each for each in found if each.feature in target.features), None)


def pair_product_of(target: Target) -> DotProduct:
    """The instruction of the target for bfloat16, or the lack of one."""
    return AVX512_BF16 if "avx512bf16" in target.features and target.vector_lanes == AVX512_BF16.lanes else PAIRS


def dot_product_of(target: Target) -> DotProduct:
    """The instruction of the target for 8-bit numbers, or the lack of one."""
    if target.architecture == "aarch64" and "dotprod" in target.features:
        return SDOT
    if "avx512vnni" in target.features and target.vector_lanes == AVX512_VNNI.lanes:
        return AVX512_VNNI
    if "avxvnni" in target.features and target.vector_lanes == AVX_VNNI.lanes:
        return AVX_VNNI
    return DotProduct("", "", target.vector_lanes, 1, "int8", (1,))
