"""Rewrites the function of a 3x3 convolution so that it computes the same by Winograd's method.

The convolution's block is replaced by six, with m x m outputs to a tile and a = m + 2:

    weight    (a, a, filters / lanes, channels, lanes)   depends on constants alone: computed at compile time
    pad       the data, with zeros where the last tiles reach over the edge
    input     (a, a, batch, tiles down, tiles across, channels)
    product   (a, a, batch, tiles down, tiles across, filters): a * a independent matrix products
    output    whole tiles of outputs
    crop      the outputs that were asked for

The convolution's padding, which `pad` may include, and its epilogue are unchanged. Of a convolution of halves, weight,
pad, input and product are halves, transformed in float32; the product has an axis more, for the partial sums that the
output's transform adds up (see `graph/cpu/half_sums.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range

from slipstream.graph.cpu.half_sums import HALF, terms_at_once
from slipstream.graph.describe.blocks import Block, adds_partial_sums, convolution_of, whole_sums
from slipstream.graph.extents import are_known
from slipstream.graph.schedule_blocks import DATA_PARALLEL, PREPROC, REDUCTION, vector_width
from slipstream.graph.winograd.transforms import TRANSFORMS, Row, Transform, transform_square
from slipstream.machine.target import Target

WEIGHT, PAD, INPUT, PRODUCT, OUTPUT, CROP = (
    f"winograd_{part}" for part in ("weight", "pad", "input", "product", "output", "crop")
)
_KERNEL = 3
_KINDS = [DATA_PARALLEL] * 4 + [REDUCTION] * 3
_FEWEST_LANES = 4


@dataclass(frozen=True)
class Convolution:
    """A stride-1 3x3 convolution in NHWC: which statement of the function it is, and its tensors."""

    position: int
    data: Any
    weight: Any
    result: Any

    @property
    def is_half(self) -> bool:
        return str(self.data.dtype) == HALF

    @property
    def batch(self) -> int:
        return int(self.result.shape[0])

    @property
    def height(self) -> int:
        return int(self.result.shape[1])

    @property
    def width(self) -> int:
        return int(self.result.shape[2])

    @property
    def filters(self) -> int:
        return int(self.result.shape[3])

    @property
    def channels(self) -> int:
        return int(self.data.shape[3])

    @property
    def multiplications(self) -> int:
        """Those of the direct way."""
        pixels = self.batch * self.height * self.width
        return pixels * self.filters * self.channels * _KERNEL**2

    def weight_bytes(self, size: int) -> int:
        """Those of the weights, transformed for tiles of `size` x `size`."""
        return (size + _KERNEL - 1) ** 2 * self.filters * self.channels * (2 if self.is_half else 4)

    def tiles(self, size: int) -> int:
        """How many tiles of `size` x `size` cover the result."""
        return self.batch * math.ceil(self.height / size) * math.ceil(self.width / size)


def find_convolution(func: tirx.PrimFunc) -> Convolution | None:
    """The function's one convolution that Winograd's method can compute, if it has one."""
    statements = _statements(func)
    found = [c for n, statement in enumerate(statements) if (c := _convolution(n, statement, func)) is not None]
    found += [c for n in range(len(statements) - 1) if (c := _of_halves(n, statements, func)) is not None]
    return found[0] if len(found) == 1 else None


def winograd_form(func: tirx.PrimFunc, tile: int, target: Target) -> tirx.PrimFunc | None:
    """`func` with its convolution computed in tiles of `tile` x `tile` outputs; None if it has no such convolution."""
    convolution = find_convolution(func)
    lanes = vector_width(convolution.filters, target) if convolution is not None else 1
    if convolution is None or lanes < _FEWEST_LANES:
        return None
    buffers, blocks = _Form(convolution, tile, lanes).build()
    statements, root = _statements(func), func.body.block
    after = convolution.position + (2 if convolution.is_half else 1)  # partial sums and their total
    body = tirx.SeqStmt([*statements[: convolution.position], *blocks, *statements[after:]])
    whole = s_tir.SBlock([], root.reads, root.writes, root.name_hint, body, None, [*root.alloc_buffers, *buffers])
    return func.with_body(s_tir.SBlockRealize([], True, whole))


def _statements(func: tirx.PrimFunc) -> list[Any]:
    """The function's loop nests, in order."""
    if not isinstance(func.body, s_tir.SBlockRealize) or func.body.block.name_hint != "root":
        return []
    body = func.body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _convolution(position: int, statement: Any, func: tirx.PrimFunc) -> Convolution | None:
    """What the statement computes if it is such a convolution in float32 of a weight that may be stored at will."""
    block = _block_of(statement)
    if block is None or [int(v.iter_type) for v in block.iter_vars] != _KINDS or len(block.reads) != 2:
        return None
    data, weight, result = (region.source for region in (*block.reads, *block.writes))
    n, y, x, f, ry, rx, c = (v.var for v in block.iter_vars)
    if not all(len(buffer.shape) == 4 and str(buffer.dtype) == "float32" for buffer in (data, weight, result)):
        return None
    total = result[n, y, x, f] + data[n, y + ry, x + rx, c] * weight[f, ry, rx, c]
    if not tvm_ffi.structural_equal(block.body, tirx.BufferStore(result, total, [n, y, x, f])):
        return None
    if not _is_free(weight, func):
        return None
    extents = [extent for buffer in (data, weight, result) for extent in buffer.shape]
    if not are_known(extents):
        return None
    window = [int(extent) for extent in weight.shape[1:3]]
    return Convolution(position, data, weight, result) if window == [_KERNEL, _KERNEL] else None


def _of_halves(position: int, statements: list[Any], func: tirx.PrimFunc) -> Convolution | None:
    """The same of halves, in partial sums and their total."""
    partial, total = (_block_of(statement) for statement in statements[position : position + 2])
    if partial is None or total is None or not adds_partial_sums(total, partial):
        return None
    (whole,) = whole_sums([Block(partial), Block(total)])
    sizes = convolution_of(whole)
    data, weight = (region.source for region in partial.reads)
    result = total.writes[0].source
    if sizes is None or sizes.groups > 1 or not _is_free(weight, func) or str(result.dtype) != "float32":
        return None
    windows = [(window.dimension, window.size, window.stride, window.dilation) for window in sizes.windows]
    if windows != [(1, _KERNEL, 1, 1), (2, _KERNEL, 1, 1)] or [len(b.shape) for b in (data, weight, result)] != [
        4,
        4,
        4,
    ]:
        return None
    batch, height, width, filters = (int(extent) for extent in result.shape)
    channels = int(data.shape[3])
    fits = [int(e) for e in data.shape] == [batch, height + _KERNEL - 1, width + _KERNEL - 1, channels]
    in_order = [int(e) for e in weight.shape] == [filters, _KERNEL, _KERNEL, channels]
    return Convolution(position, data, weight, result) if fits and in_order else None


def _is_free(weight: Any, func: tirx.PrimFunc) -> bool:
    """Whether a weight may be stored at will."""
    free = [func.params[int(i)] for i in func.attrs.get("layout_free_buffers", [])] if func.attrs else []
    return any(weight.same_as(parameter) for parameter in free)


def _block_of(statement: Any) -> Any | None:
    while isinstance(statement, tirx.For):
        statement = statement.body
    return statement.block if isinstance(statement, s_tir.SBlockRealize) else None


class _Form:
    """Writes the six blocks."""

    def __init__(self, convolution: Convolution, tile: int, lanes: int) -> None:
        self._data, self._weight, self._result = convolution.data, convolution.weight, convolution.result
        self._tile, self._square, self._lanes = tile, tile + _KERNEL - 1, lanes
        self._transforms = TRANSFORMS[tile]
        self._index_type = str(self._result.shape[0].ty.dtype)
        self._batch, self._channels, self._filters = convolution.batch, convolution.channels, convolution.filters
        self._dtype = HALF if convolution.is_half else "float32"
        self._terms = terms_at_once([self._channels])[0] if convolution.is_half else self._channels
        self._down, self._across = math.ceil(convolution.height / tile), math.ceil(convolution.width / tile)

    def build(self) -> tuple[list[Any], list[Any]]:
        """(the buffers between the blocks, the blocks in their loops)."""
        tiles = (self._batch, self._down, self._across)
        reach = [count * self._tile + _KERNEL - 1 for count in tiles[1:]]
        square = (self._square, self._square)
        weight = self._buffer(WEIGHT, *square, self._filters // self._lanes, self._channels, self._lanes)
        pad = self._buffer(PAD, self._batch, *reach, self._channels)
        input_ = self._buffer(INPUT, *square, *tiles, self._channels)
        product = self._buffer(PRODUCT, *square, *self._parts, *tiles, self._filters)
        output = self._buffer(OUTPUT, self._batch, *(n * self._tile for n in tiles[1:]), self._filters, dtype="float32")
        blocks = [
            self._transform_weight(weight),
            self._pad(pad),
            self._transform_input(pad, input_),
            self._multiply(input_, weight, product),
            self._transform_output(product, output),
            self._crop(output),
        ]
        return [weight, pad, input_, product, output], blocks

    def _transform_weight(self, weight: Any) -> Any:
        f, c = self._variables("f", "c")
        at = [tirx.floordiv(f, self._int(self._lanes)), c, tirx.floormod(f, self._int(self._lanes))]
        body = _transform(
            self._transforms.weight,
            _KERNEL,
            lambda i, j: _wide(self._weight[f, self._int(i), self._int(j), c]),
            lambda i, j, value: self._store(weight, value, [self._int(i), self._int(j), *at]),
        )
        reads = self._region(self._weight, (f, 1), (0, _KERNEL), (0, _KERNEL), (c, 1))
        writes = self._region(weight, (0, self._square), (0, self._square), *((index, 1) for index in at))
        return self._nest(WEIGHT, [(c, self._channels), (f, self._filters)], reads, writes, body, {PREPROC: True})

    def _pad(self, pad: Any) -> Any:
        n, y, x, c = at = self._variables("n", "y", "x", "c")
        height, width = self._data.shape[1:3]
        inside = tirx.if_then_else(
            tirx.all(y < height, x < width), self._data[n, y, x, c], tirx.FloatImm(self._dtype, 0)
        )
        return self._copy(PAD, self._data, pad, at, inside)

    def _transform_input(self, pad: Any, input_: Any) -> Any:
        n, ty, tx, c, *ones = self._variables("n", "ty", "tx", "c", "i", "j")
        corner = [ty * self._int(self._tile), tx * self._int(self._tile)]
        origin = [one * self._int(self._square) for one in ones]
        body = _transform(
            self._transforms.input,
            self._square,
            lambda i, j: _wide(pad[(n, *self._offset(corner, i, j), c)]),
            lambda i, j, value: self._store(input_, value, [*self._offset(origin, i, j), n, ty, tx, c]),
        )
        reads = self._region(pad, (n, 1), *((start, self._square) for start in corner), (c, 1))
        writes = self._region(input_, *((start, self._square) for start in origin), *((v, 1) for v in (n, ty, tx, c)))
        return self._nest(INPUT, self._over_tiles(ones, n, ty, tx, (c, self._channels)), reads, writes, body)

    def _multiply(self, input_: Any, weight: Any, product: Any) -> Any:
        i, j, n, ty, tx, f, c = self._variables("i", "j", "n", "ty", "tx", "f", "c")
        part = self._variables("part") if self._parts else []
        channel = part[0] * self._int(self._terms) + c if part else c
        filter_at = [tirx.floordiv(f, self._int(self._lanes)), channel, tirx.floormod(f, self._int(self._lanes))]
        at = [i, j, *part, n, ty, tx, f]
        total = product[tuple(at)] + input_[i, j, n, ty, tx, channel] * weight[(i, j, *filter_at)]
        reads = [
            *self._region(input_, *((v, 1) for v in (i, j, n, ty, tx, channel))),
            *self._region(weight, *((v, 1) for v in (i, j, *filter_at))),
        ]
        loops = [(i, self._square), (j, self._square), *zip(part, self._parts, strict=True)]
        loops += [(n, self._batch), (ty, self._down), (tx, self._across)]
        return self._nest(
            PRODUCT,
            [*loops, (f, self._filters), (c, self._terms)],
            reads,
            self._region(product, *((v, 1) for v in at)),
            tirx.BufferStore(product, total, at),
            summed=1,
            init=tirx.BufferStore(product, tirx.FloatImm(self._dtype, 0), at),
        )

    def _transform_output(self, product: Any, output: Any) -> Any:
        n, ty, tx, f, *ones = self._variables("n", "ty", "tx", "f", "i", "j", *["part"] * len(self._parts))
        corner = [ty * self._int(self._tile), tx * self._int(self._tile)]
        origin = [one * self._int(self._square) for one in ones[:2]]
        first = [one * self._int(count) for one, count in zip(ones[2:], self._parts, strict=True)]
        body = _transform(
            self._transforms.output,
            self._square,
            lambda i, j: self._total(product, self._offset(origin, i, j), first, [n, ty, tx, f]),
            lambda i, j, value: tirx.BufferStore(output, value, [n, *self._offset(corner, i, j), f]),
        )
        squares = [(start, self._square) for start in origin]
        parts = list(zip(first, self._parts, strict=True))
        reads = self._region(product, *squares, *parts, *((v, 1) for v in (n, ty, tx, f)))
        writes = self._region(output, (n, 1), *((start, self._tile) for start in corner), (f, 1))
        return self._nest(OUTPUT, self._over_tiles(ones, n, ty, tx, (f, self._filters)), reads, writes, body)

    def _crop(self, output: Any) -> Any:
        at = self._variables("n", "y", "x", "f")
        return self._copy(CROP, output, self._result, at, output[tuple(at)])

    @property
    def _parts(self) -> list[int]:
        """How many partial sums there are, if there are several."""
        return [self._channels // self._terms] if self._terms < self._channels else []

    def _total(self, product: Any, square: list[Any], first: list[Any], at: list[Any]) -> Any:
        """An element of the product in float32, its partial sums added up."""
        if not first:
            return _wide(product[(*square, *at)])
        parts = [_wide(product[(*square, first[0] + self._int(part), *at)]) for part in range(self._parts[0])]
        return sum(parts[1:], parts[0])

    def _store(self, buffer: Any, value: Any, at: list[Any]) -> Any:
        return tirx.BufferStore(buffer, value if self._dtype == "float32" else tirx.Cast(self._dtype, value), at)

    def _copy(self, name: str, source: Any, to: Any, at: list[Any], value: Any) -> Any:
        reads, writes = (self._region(buffer, *((v, 1) for v in at)) for buffer in (source, to))
        loops = [(v, int(extent)) for v, extent in zip(at, to.shape, strict=True)]
        return self._nest(name, loops, reads, writes, tirx.BufferStore(to, value, at))

    def _over_tiles(self, ones: list[Any], n: Any, ty: Any, tx: Any, last: tuple[Any, int]) -> list[tuple[Any, int]]:
        """The loops of a transform. TVM finds the region of a block by its variables, so that the dimensions a
        transform covers as a whole need one too: a loop of one iteration each."""
        return [*((one, 1) for one in ones), (n, self._batch), (ty, self._down), (tx, self._across), last]

    def _offset(self, start: list[Any], i: int, j: int) -> list[Any]:
        return [start[0] + self._int(i), start[1] + self._int(j)]

    def _int(self, value: int) -> Any:
        return tirx.IntImm(self._index_type, value)

    def _variables(self, *names: str) -> list[Any]:
        return [tirx.Var(name, self._index_type) for name in names]

    def _buffer(self, name: str, *shape: int, dtype: str = "") -> Any:
        return tirx.decl_buffer([self._int(extent) for extent in shape], dtype or self._dtype, name)

    def _region(self, buffer: Any, *parts: tuple[Any, int]) -> list[Any]:
        ranges = [
            Range.from_min_extent(self._int(start) if isinstance(start, int) else start, self._int(extent))
            for start, extent in parts
        ]
        return [tirx.BufferRegion(buffer, ranges)]

    def _nest(
        self,
        name: str,
        loops: Sequence[tuple[Any, int]],
        reads: list[Any],
        writes: list[Any],
        body: Any,
        annotations: dict[str, Any] | None = None,
        *,
        summed: int = 0,
        init: Any = None,
    ) -> Any:
        """A block in a loop for each of its variables, the last `summed` of which it sums over."""
        kinds = [DATA_PARALLEL] * (len(loops) - summed) + [REDUCTION] * summed
        variables = [
            tirx.IterVar(Range(self._int(0), self._int(extent)), variable, kind)
            for (variable, extent), kind in zip(loops, kinds, strict=True)
        ]
        counters = self._variables(*(f"i_{variable.name}" for variable, _ in loops))
        block = s_tir.SBlock(variables, reads, writes, name, body, init, [], [], annotations or {})
        nest: Any = s_tir.SBlockRealize(counters, True, block)
        for counter, (_, extent) in reversed(list(zip(counters, loops, strict=True))):
            nest = tirx.For(counter, self._int(0), self._int(extent), tirx.ForKind.SERIAL, nest)
        return nest


def _wide(load: Any) -> Any:
    return load if str(load.ty.dtype) == "float32" else tirx.Cast("float32", load)


def _transform(
    transform: Transform, size: int, load: Callable[[int, int], Any], store: Callable[[int, int, Any], Any]
) -> Any:
    """Load a square of `size`, transform it and store the result, with a variable for everything in between."""
    statements: list[Any] = []

    def keep(value: Any) -> Any:
        if isinstance(value, tvm.ir.Var):
            return value
        variable = tirx.Var(f"t{len(statements)}", "float32")
        statements.append(tirx.Bind(variable, value))
        return variable

    rows: list[Row] = [[keep(load(i, j)) for j in range(size)] for i in range(size)]
    for i, row in enumerate(transform_square(transform, rows, keep)):
        for j, value in enumerate(row):
            statements.append(store(i, j, value))
    return tirx.SeqStmt(statements)
