"""What a program of MetaSchedule's CUDA sketches asks of a GPU, computed from its decisions alone.

Nine in ten programs drawn at random have too few or too many threads, or tiles that do not fit shared memory. TVM finds
that out after replaying the whole trace and lowering it; here it takes some multiplications.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from slipstream.machine.cuda import CudaDevice
from slipstream.machine.target import STATIC_SHARED_BYTES, Target
from slipstream.program.decisions import Choice, Decisions, IllegalDecisionError, Points, Tile
from slipstream.program.operands import Operand, blocks_of, operand, strides
from slipstream.program.sketch import Sketch
from slipstream.tvm_bridge.intrinsics import PIECE, WMMA

_MOST_VIRTUAL_THREADS = 8
# A thread has 255 registers; besides its sums it needs some for operands and addresses.
_MOST_SUMS = 192
_OTHER_REGISTERS = 24
_MOST_RESIDENT_THREADS = 2048  # of a multiprocessor, on most architectures
_TILING = "meta_schedule.tiling_structure"
_PIPELINE = "software_pipeline_stage"

_PIECE_BYTES = PIECE * PIECE * 2  # of float16

# One factor of a program: which decision, and which of its parts (-1: a choice's value).
Factor = tuple[int, int]
ValueOf = Callable[[int], Any]


@dataclass(frozen=True)
class Usage:
    """What one block of threads uses: numbers, or arrays with one for each of many programs.

    `steps` is how often it goes to memory for the next tiles.
    """

    threads: Any
    virtual_threads: Any
    sums: Any
    shared_bytes: Any
    steps: Any


@dataclass(frozen=True)
class GpuLimits:
    """The resources of one sketch as products of its factors; `check` refuses what the GPU cannot run."""

    points: Points
    blocks: tuple[Factor, ...]
    threads: tuple[Factor, ...]
    virtual: tuple[Factor, ...]
    sums: tuple[Factor, ...]
    steps: tuple[Factor, ...]
    tiles: Mapping[int, tuple[Factor, ...]]
    operands: tuple[Operand, ...]
    copies: int
    registers: int
    multiprocessors: int
    fewest_threads: int
    most_threads: int
    shared_bytes: int
    lanes: int = 1  # threads that work on one thing together: a warp, at tensor cores
    sum_registers: int = 1  # that one of `sums` takes of each thread
    says_all: bool = False
    """Whether nothing is left that could keep a program which passes from being launched."""

    def usage(self, decisions: Decisions) -> Usage:
        return self._usage(lambda number: decisions[number])

    def _usage(self, value_of: ValueOf) -> Usage:
        extents = {loop: self._product(factors, value_of) for loop, factors in self.tiles.items()}
        shared = sum(operand.bytes(extents) for operand in self.operands)
        return Usage(
            threads=self.lanes * self._product(self.threads, value_of),
            virtual_threads=self._product(self.virtual, value_of),
            sums=self.sum_registers * self._product(self.sums, value_of),
            shared_bytes=self.copies * shared,
            steps=self._product(self.steps, value_of),
        )

    def _product(self, factors: Sequence[Factor], value_of: ValueOf) -> Any:
        """`value_of` a decision: a tile's factors, or arrays of them; a choice's index, or an array of them."""

        def factor(decision: int, part: int) -> Any:
            point = self.points[decision]
            if isinstance(point, Tile):
                return value_of(decision)[part]
            return np.asarray(point.candidates)[value_of(decision)] if isinstance(point, Choice) else 1

        return math.prod(factor(*f) for f in factors)

    def occupancy(self, decisions: Sequence[Decisions]) -> NDArray[np.float64]:
        """How each of many programs fills the GPU, as numbers for a model of how fast it is: logarithms of blocks,
        threads, virtual threads, sums, all threads together, the blocks that a multiprocessor holds at a time and how
        often all of them are filled; and how full they are the last time.

        Meant for decisions of any operator with such a sketch; extents make no difference.
        """
        columns, one = _columns(decisions, len(self.points)), np.ones(len(decisions))
        blocks, threads, virtual, sums = (
            one * self._product(factors, columns.__getitem__)
            for factors in (self.blocks, self.threads, self.virtual, self.sums)
        )
        threads, sums = self.lanes * threads, self.sum_registers * sums * virtual
        held = np.minimum(_MOST_RESIDENT_THREADS / threads, self.registers / (threads * (sums + _OTHER_REGISTERS)))
        fills = blocks / (max(1, self.multiprocessors) * np.maximum(1.0, np.floor(held)))
        logs = [blocks, threads, virtual, sums, blocks * threads, held, fills]
        return np.column_stack([*map(np.log2, logs), fills / np.ceil(fills)])

    def check(self, decisions: Decisions) -> None:
        """Raise `IllegalDecisionError` for what cannot be launched, or would not keep its sums in registers."""
        usage = self.usage(decisions)
        for broken, what in self._rules(usage):
            if broken:
                raise IllegalDecisionError(what)

    def allowed(self, decisions: Sequence[Decisions]) -> NDArray[np.bool_]:
        """For each of many decision sets, whether `check` would let it pass; in one go."""
        columns = _columns(decisions, len(self.points))
        refused = np.zeros(len(decisions), dtype=bool)
        for broken, _ in self._rules(self._usage(columns.__getitem__)):
            refused |= broken
        return ~refused

    def _rules(self, usage: Usage) -> list[tuple[Any, str]]:
        """What must not be, and how to say so."""
        if not self.threads:
            return []
        sums = usage.sums * usage.virtual_threads
        fewest = self.fewest_threads
        return [
            (usage.threads < fewest, f"{usage.threads} threads in a block are fewer than {fewest}"),
            (usage.threads > self.most_threads, f"{usage.threads} threads in a block are over {self.most_threads}"),
            (
                usage.virtual_threads > _MOST_VIRTUAL_THREADS,
                f"{usage.virtual_threads} virtual threads are over {_MOST_VIRTUAL_THREADS}",
            ),
            (
                usage.shared_bytes > self.shared_bytes,
                f"{usage.shared_bytes} bytes of shared memory are over {self.shared_bytes}",
            ),
            ((usage.steps < 2) & bool(self.steps), "tiles cannot be fetched ahead where there is only one"),
            (sums > _MOST_SUMS, f"{sums} sums in a thread are over {_MOST_SUMS}"),
            (
                usage.threads * (sums + _OTHER_REGISTERS) > self.registers,
                f"{usage.threads} threads with {sums} sums each need more than {self.registers} registers",
            ),
        ]


def _columns(decisions: Sequence[Decisions], points: int) -> list[NDArray[np.int64]]:
    """The values of each decision: of a tile a row for each factor."""
    return [np.asarray([d[number] for d in decisions], dtype=np.int64).T for number in range(points)]


def find_limits(sketch: Sketch, points: Points, func: tirx.PrimFunc | None, target: Target) -> GpuLimits:
    """Read off a sketch which of its factors become blocks, threads, sums and tiles in shared memory; without the
    function, shared memory is taken for unused.
    """
    assert target.gpu is not None
    if WMMA["compute"] in sketch.text:
        return _limits_of_tensor_cores(sketch, points, target.gpu)
    walk = _Walk(sketch)
    anchor = _block_number(walk)
    tiles = walk.tiles_in_shared_memory() if anchor is not None else {}
    return GpuLimits(
        points=points,
        blocks=walk.bound("blockIdx.x"),
        threads=walk.bound("threadIdx.x"),
        virtual=walk.bound("vthread.x"),
        sums=walk.innermost() if anchor is not None else (),
        steps=walk.pipelined,
        tiles=tiles,
        operands=_operands(func, anchor, walk.cached) if func is not None and anchor is not None else (),
        copies=walk.copies,
        registers=target.gpu.registers,
        multiprocessors=target.gpu.multiprocessors,
        # Fewer than a warp leave lanes idle; TVM would allow it.
        fewest_threads=min(target.gpu.warp, _elements(points, walk.bound("blockIdx.x"))) if tiles else 1,
        most_threads=target.gpu.threads,
        shared_bytes=min(target.gpu.shared_bytes, STATIC_SHARED_BYTES),
        says_all=bool(tiles),
    )


def _limits_of_tensor_cores(sketch: Sketch, points: Points, gpu: CudaDevice) -> GpuLimits:
    """A sketch for tensor cores tiles a matmul, perhaps many, in pieces: its last loops are rows, columns, products.

    A loop over rows or columns is shared out to blocks twice, then to warps; the rest is a warp's own. What is copied
    to shared memory is padded and, where a tile is fetched ahead, kept twice or more, which only TVM computes: its
    verifier has the last word.
    """
    tiles = [number for number, point in enumerate(points) if isinstance(point, Tile)]
    spatial, reduced = [n for n in tiles if _parts(points, n) == 5], [n for n in tiles if _parts(points, n) == 3]
    rows, columns = spatial[-2:]
    together = [n for n in spatial if n not in (rows, columns)]
    held = {n: tuple((n, part) for part in (2, 3, 4)) for n in spatial}
    held |= {n: ((n, 1), (n, 2)) for n in reduced}
    return GpuLimits(
        points=points,
        blocks=tuple((n, part) for n in spatial for part in (0, 1)),
        threads=tuple((n, 2) for n in spatial),
        virtual=(),
        sums=tuple((n, part) for n in spatial for part in (3, 4)),
        # Pieces are fetched ahead from shared memory, too: TVM cannot build that where it is done once.
        steps=tuple((n, 1) for n in reduced) if _PIPELINE in sketch.text else (),
        tiles=held,
        operands=tuple(
            Operand(_PIECE_BYTES, tuple(((n, 1),) for n in (*together, side, *reduced))) for side in (rows, columns)
        ),
        copies=1,
        registers=gpu.registers,
        multiprocessors=gpu.multiprocessors,
        fewest_threads=gpu.warp,
        most_threads=gpu.threads,
        shared_bytes=gpu.shared_bytes,
        lanes=gpu.warp,
        sum_registers=PIECE * PIECE // gpu.warp,
    )


def _parts(points: Points, number: int) -> int:
    point = points[number]
    return point.parts if isinstance(point, Tile) else 0


def _elements(points: Points, blocks: Sequence[Factor]) -> int:
    """How many elements the blocks of threads share out."""
    spatial = [points[number] for number in {number for number, _ in blocks}]
    return math.prod(point.extent for point in spatial if isinstance(point, Tile))


class _Walk:
    """The instructions of a sketch, followed once: which factors each loop consists of."""

    def __init__(self, sketch: Sketch) -> None:
        self.blocks: dict[str, str] = {}
        self.anchor: str | None = None
        self.cached: list[int] = []
        self.copies = 1
        self.pipelined: tuple[Factor, ...] = ()
        self._loops: list[str] = []
        self._order: list[str] = []
        self._parts: dict[str, list[str]] = {}
        self._factors: dict[str, tuple[Factor, ...]] = {}
        self._bindings: dict[str, tuple[Factor, ...]] = {}
        self._shared_at: str | None = None
        variables: dict[str, Factor] = {}
        numbers = {position: number for number, position in enumerate(sketch.sampled)}
        for position, (name, inputs, attributes, outputs) in enumerate(sketch.instructions):
            if position in numbers:
                single = name == "SampleCategorical"
                variables.update((out, (numbers[position], -1 if single else n)) for n, out in enumerate(outputs))
            self._take(name, inputs, attributes, outputs, variables)

    def _take(self, name: str, inputs: list[Any], attributes: list[Any], outputs: list[str], known: Any) -> None:
        if name == "GetSBlock":
            self.blocks[outputs[0]] = attributes[0]
        elif name == "Annotate" and attributes[0] == _TILING:
            self.anchor = inputs[0]
        elif name == "Annotate" and attributes[0] == _PIPELINE:
            self.copies = 1 + max(inputs[1])
            self.pipelined = self._factors[inputs[0]]
        elif name == "GetLoops" and inputs[0] == self.anchor and not self._loops:
            self._loops = outputs
        elif name == "Split":
            self._parts[inputs[0]] = outputs
            for loop, factor in zip(outputs, inputs[1:], strict=True):
                self._factors[loop] = (known[factor],) if factor in known else ()
        elif name == "Reorder" and not self._order:
            self._order = inputs
        elif name == "Fuse":
            self._factors[outputs[0]] = tuple(f for loop in inputs for f in self._factors.get(loop, ()))
        elif name == "Bind":
            # Several kernels in one program: the largest of equal axes is what counts, any of them will do.
            self._bindings.setdefault(attributes[0], self._factors.get(inputs[0], ()))
        elif name == "CacheRead" and attributes[1] == "shared":
            self.cached.append(int(attributes[0]))
            self._waiting = outputs[0]
        elif name == "ComputeAt" and self.cached and inputs[0] == self._waiting:
            self._shared_at = inputs[1]

    def bound(self, axis: str) -> tuple[Factor, ...]:
        return self._bindings.get(axis, ())

    def tiles_in_shared_memory(self) -> dict[int, tuple[Factor, ...]]:
        """For each loop of the anchor, the factors a block's tile of it is made of."""
        if self._shared_at not in self._order:
            return {}
        at = self._order.index(self._shared_at)
        launched = set(self.bound("blockIdx.x"))
        threads = set(self.bound("threadIdx.x")) | set(self.bound("vthread.x"))
        tiles: dict[int, tuple[Factor, ...]] = {}
        for number, loop in enumerate(self._loops):
            inside: list[Factor] = []
            for part in self._parts.get(loop, []):
                factors = self._factors[part]
                if not set(factors) & launched and (set(factors) & threads or self._order.index(part) > at):
                    inside += factors
            tiles[number] = tuple(inside)
        return tiles

    def innermost(self) -> tuple[Factor, ...]:
        """The factors of spatial loops that neither blocks nor threads share out: the sums of one thread."""
        taken = {f for axis in ("blockIdx.x", "vthread.x", "threadIdx.x") for f in self.bound(axis)}
        spatial = {decision for decision, _ in taken}
        return tuple(f for loop in self._order for f in self._factors[loop] if f[0] in spatial and f not in taken)


def _block_number(walk: _Walk) -> int | None:
    """The place of the tiled block in the function, where it is one of the function's own."""
    name = walk.blocks.get(walk.anchor or "", "")
    return int(name[1:]) if name.startswith("#") and name[1:].isdecimal() else None


def _operands(func: tirx.PrimFunc, anchor: int, cached: Sequence[int]) -> tuple[Operand, ...]:
    block = blocks_of(func)[anchor]
    variables = [axis.var for axis in block.iter_vars]
    regions = [block.reads[number] for number in cached]
    return tuple(operand(region, [strides(part.min, variables) for part in region.region]) for region in regions)
