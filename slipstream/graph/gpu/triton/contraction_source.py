"""The Triton kernel of a contraction with given tiles, as source text."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from slipstream.graph.gpu.triton.contraction import Axis, Contraction
from slipstream.graph.gpu.triton.expressions import TYPES, Writer
from slipstream.graph.gpu.triton.kernel import Kernel
from slipstream.graph.gpu.triton.tiles import Extents, Tiles


def extents_of(contraction: Contraction) -> Extents:
    return Extents(*contraction.sizes, element_bytes=4 if contraction.dtype == "float32" else 2)


def contraction_kernel(contraction: Contraction, tiles: Tiles, *, overlaps: bool = False) -> Kernel:
    """Raise `InexpressibleError` if an expression of it has no Triton code."""
    sizes = extents_of(contraction)
    pointers = [f"p{i}" for i in range(len(contraction.parameters))]
    scratch = ["parts", "counts"] if tiles.splits > 1 else []
    body = _Body(contraction, tiles, sizes, dict(zip(contraction.parameters, pointers, strict=True)), overlaps)
    text = "\n".join(
        [
            "import triton",
            "import triton.language as tl",
            "",
            "",
            "@triton.jit",
            f"def kernel({', '.join([*pointers, *scratch])}):",
            *(f"    {line}" for line in body.lines()),
            "",
        ]
    )
    return Kernel(
        source=text,
        types=tuple(str(parameter.ty.dtype) for parameter in contraction.parameters),
        grid=(sizes.tiles(tiles) // sizes.batch, tiles.splits, sizes.batch),
        warps=tiles.warps,
        stages=tiles.stages,
        overlaps=overlaps,
        scratch=(sizes.scratch_bytes(tiles), 4 * sizes.tiles(tiles)) if tiles.splits > 1 else (),
    )


class _Body:
    def __init__(
        self, contraction: Contraction, tiles: Tiles, sizes: Extents, pointers: dict[object, str], overlaps: bool
    ) -> None:
        self.overlaps = overlaps
        self.contraction, self.tiles, self.sizes, self.pointers = contraction, tiles, sizes, pointers
        self.scalars: set[str] = set()
        self.rows_exact = sizes.rows % tiles.block_rows == 0
        self.columns_exact = sizes.columns % tiles.block_columns == 0
        self.steps = sizes.steps(tiles)
        self.steps_each = -(-self.steps // tiles.splits)
        self.steps_exact = self.steps_each * tiles.splits == self.steps
        innermost = contraction.reduced[-1].extent if contraction.reduced else 1
        # Terms of one step that differ in the innermost loop only: the other loops' variables are the same for all.
        self.in_rows = innermost % tiles.block_sum == 0 and len(contraction.reduced) > 1
        exact = self.steps_exact and sizes.terms % tiles.block_sum == 0
        self.terms_exact = self.in_rows or exact

    def lines(self) -> list[str]:
        t, s = self.tiles, self.sizes
        across, down = -(-s.columns // t.block_columns), -(-s.rows // t.block_rows)
        place = ("block % {0}", "block // {0}") if t.rows_first else ("block // {1}", "block % {1}")
        lines = [
            "block = tl.program_id(0)",
            f"row_block = {place[0].format(down, across)}",
            f"column_block = {place[1].format(down, across)}",
            f"row = row_block * {t.block_rows} + tl.arange(0, {t.block_rows})",
            f"column = column_block * {t.block_columns} + tl.arange(0, {t.block_columns})",
        ]
        if t.splits > 1:
            lines.append("part = tl.program_id(1)")
        if s.batch > 1:
            lines.append("batch = tl.program_id(2)")
        names: dict[object, str] = {}
        lines += self._split("batch", "{}", self.contraction.batch, names)
        self.scalars = set(names.values())
        lines += self._split("row", "({})[:, None]", self.contraction.rows, names)
        lines += self._split("column", "({})[None, :]", self.contraction.columns, names)
        lines += [
            *([] if self.rows_exact else [f"row_ok = (row < {s.rows})[:, None]"]),
            *([] if self.columns_exact else [f"column_ok = (column < {s.columns})[None, :]"]),
            f"sums = tl.zeros(({t.block_rows}, {t.block_columns}), dtype=tl.float32)",
        ]
        if self.overlaps:
            lines.append("tl.extra.cuda.gdc_wait()")
        lines.append(f"for count in range({self.steps_each}):")
        lines += [f"    {line}" for line in self._step(names)]
        if t.splits > 1:
            lines += self._add_parts(down * across)
            return [*lines, *(f"    {line}" for line in self._store(names))]
        return [*lines, *self._store(names)]

    def _split(self, name: str, shape: str, axes: Sequence[Axis], names: dict[object, str]) -> list[str]:
        """Variables of the loops that `name` counts through."""
        lines, stride = [], prod(axis.extent for axis in axes)
        for number, axis in enumerate(axes):
            stride //= axis.extent
            names[axis.variable] = "0" if axis.extent == 1 else f"{name}_{number}"
            if axis.extent > 1:
                value = name if stride == 1 else f"{name} // {stride}"
                if number > 0 and prod(a.extent for a in axes[:number]) > 1:
                    value = f"{value} % {axis.extent}"
                lines.append(f"{name}_{number} = {shape.format(value)}")
        return lines

    def _step(self, names: dict[object, str]) -> list[str]:
        """Load a tile of each factor and multiply them."""
        t, reduced = self.tiles, self.contraction.reduced
        lines = [f"step = part * {self.steps_each} + count" if t.splits > 1 else f"step = {self._count(reduced)}"]
        names = dict(names)
        if self.in_rows:
            steps_in_row = reduced[-1].extent // t.block_sum
            lines.append(f"outer = step // {steps_in_row}" if steps_in_row > 1 else "outer = step")
            inner = f"(step % {steps_in_row}) * {t.block_sum} + " if steps_in_row > 1 else ""
            lines.append(f"term = {inner}tl.arange(0, {t.block_sum})")
            lines += self._split("outer", "{}", reduced[:-1], names)
            self.scalars.update(names[axis.variable] for axis in reduced[:-1])
            own = reduced[-1:]
        else:
            lines.append(f"term = step * {t.block_sum} + tl.arange(0, {t.block_sum})")
            own = reduced
        left, right = dict(names), dict(names)
        for side, shape, of_side in (("left", "({})[None, :]", left), ("right", "({})[:, None]", right)):
            numbered: dict[object, str] = {}
            split = self._split("term", shape, own, numbered)
            lines += [f"{side}_{line}" for line in split]
            of_side.update({v: n if n == "0" else f"{side}_{n}" for v, n in numbered.items()})
        in_left = [] if self.rows_exact else ["row_ok"]
        in_right = [] if self.columns_exact else ["column_ok"]
        if not self.terms_exact:
            in_left.append(f"(term < {self.sizes.terms})[None, :]")
            in_right.append(f"(term < {self.sizes.terms})[:, None]")
        if not self.steps_exact and self.in_rows:
            in_left.append(f"(step < {self.steps})")
            in_right.append(f"(step < {self.steps})")
        dtype = self.contraction.dtype
        a = self._writer(left).factor(self.contraction.left, " & ".join(in_left), dtype)
        b = self._writer(right).factor(self.contraction.right, " & ".join(in_right), dtype)
        shapes = (f"({t.block_rows}, {t.block_sum})", f"({t.block_sum}, {t.block_columns})")
        precision = ', input_precision="tf32"' if dtype == "float32" else ""
        return [
            *lines,
            f"a = tl.broadcast_to({a}, {shapes[0]})",
            f"b = tl.broadcast_to({b}, {shapes[1]})",
            f"sums = tl.dot(a, b, sums{precision})",
        ]

    def _count(self, reduced: Sequence[Axis]) -> str:
        """The step that all blocks are at: plus 0, of which the compiler does not know it, where terms are divided.

        It would do that for four terms at a time, in bytes, and ptxas 12.8 makes wrong code of it: on an H200 a 7x7
        convolution of 3 channels was wrong with 4 of 9 tiles, and right without ptxas' optimisations.
        """
        return "count" if self.in_rows or len(reduced) < 2 else "count + tl.program_id(1)"

    def _add_parts(self, blocks: int) -> list[str]:
        """Keep the own part; the block that finishes last continues with the sum of all."""
        t = self.tiles
        size = t.block_rows * t.block_columns
        place = f"batch * {blocks} + block" if self.sizes.batch > 1 else "block"
        return [
            f"tile = {place}",
            f"down, across = tl.arange(0, {t.block_rows}), tl.arange(0, {t.block_columns})",
            f"inside = down[:, None] * {t.block_columns} + across[None, :]",
            f"tl.store(parts + (tile * {t.splits} + part) * {size} + inside, sums)",
            "tl.debug_barrier()",
            'done = tl.atomic_add(counts + tile, 1, sem="acq_rel")',
            f"if done == {t.splits - 1}:",
            f"    sums = tl.zeros(({t.block_rows}, {t.block_columns}), dtype=tl.float32)",
            f"    for other in range({t.splits}):",
            f'        sums += tl.load(parts + (tile * {t.splits} + other) * {size} + inside, cache_modifier=".cg")',
            "    tl.store(counts + tile, 0)",
        ]

    def _writer(self, variables: dict[object, str], replaced: dict[object, str] | None = None) -> Writer:
        return Writer(self.pointers, variables, replaced or {}, self.scalars)

    def _store(self, names: dict[object, str]) -> list[str]:
        contraction = self.contraction
        guard = " & ".join([*([] if self.rows_exact else ["row_ok"]), *([] if self.columns_exact else ["column_ok"])])
        variables = {variable: names[own] for variable, own in contraction.stored.items()}
        writer = self._writer(variables, {contraction.sums: "sums"})
        value = writer.value(contraction.epilogue, guard)
        address = writer.address(contraction.output, contraction.indices)
        to = TYPES[str(contraction.output.dtype)]
        mask = f", mask={guard}" if guard else ""
        shape = f"({self.tiles.block_rows}, {self.tiles.block_columns})"
        return [f"tl.store(tl.broadcast_to({address}, {shape}), tl.broadcast_to(({value}).to({to}), {shape}){mask})"]
