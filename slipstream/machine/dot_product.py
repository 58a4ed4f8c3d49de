"""Instructions of CPUs that add products of four 8-bit numbers to each 32-bit lane.

Such an instruction multiplies four bytes of data, the same for all lanes, with four weights of each lane.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.machine.target import Target


@dataclass(frozen=True)
class DotProduct:
    """How 8-bit products are computed on a target: filters in a vector, neighbouring products in a lane (`group`), the
    type data have to be in, and how many bytes of data one load may bring (`widths`, the largest first).

    `instruction` is LLVM's name of it; empty where there is none, and then the code is of ordinary multiplications.
    """

    instruction: str
    name: str
    lanes: int
    group: int
    data_type: str
    widths: tuple[int, ...]

    def width(self, length: int) -> int:
        """The most neighbouring products of a reduction over `length` that one step computes."""
        return next((width for width in self.widths if length % width == 0), 1)


# By element: one register of data serves four instructions.
SDOT = DotProduct("llvm.aarch64.neon.sdot.v4i32.v16i8", "SDOT", 4, 4, "int8", (16, 8, 4))
# The same for depthwise convolutions: of four weights in a lane, those for other channels are zero.
SDOT_OF_CHANNELS = DotProduct(SDOT.instruction, "SDOT", 16, 4, "int8", (4,))
AVX512_VNNI = DotProduct("llvm.x86.avx512.vpdpbusd.512", "AVX-512 VNNI", 16, 4, "uint8", (4,))
AVX_VNNI = DotProduct("llvm.x86.avx512.vpdpbusd.256", "AVX VNNI", 8, 4, "uint8", (4,))


def dot_product_of(target: Target) -> DotProduct:
    """The instruction of the target, or the lack of one."""
    if target.architecture == "aarch64" and "dotprod" in target.features:
        return SDOT
    if "avx512vnni" in target.features and target.vector_lanes == AVX512_VNNI.lanes:
        return AVX512_VNNI
    if "avxvnni" in target.features and target.vector_lanes == AVX_VNNI.lanes:
        return AVX_VNNI
    return DotProduct("", "", target.vector_lanes, 1, "int8", (1,))
