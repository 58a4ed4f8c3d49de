"""Products of AMX tiles as TVM's tensor intrinsics: a tile of sums is cleared, has products added, and is stored.

A tile of sums has up to 16 rows of 16 columns and lives in a tile register as long as it is summed up. Which one, and
which instructions load data and weights, is decided in `tile_registers.py` once loops are written out; until then a
step is a call of a function that does not exist, named here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import tvm
from tvm import s_tir
from tvm.script import tirx as T  # noqa: N812

from slipstream.machine.dot_product import COLUMNS, TILE_OPERATIONS, TileOperation
from slipstream.tvm_bridge.intrinsics import quick_inspect_stack

_PREFIX = "slipstream.tile."
CLEAR, MULTIPLY, STORE = (f"slipstream_tile_{step}" for step in ("clear", "multiply", "store"))


@dataclass(frozen=True)
class TileShape:
    """`rows` of data, `step` elements or rows of memory apart, times weights, over `depth` products.

    Rows are along an axis of their own, or, if `within_row`, `step` elements apart along the same axis as the depth.
    """

    operation: TileOperation
    rows: int
    depth: int
    step: int = 1
    within_row: bool = False

    @property
    def name(self) -> str:
        """What TVM has the multiplication under."""
        kind = "within" if self.within_row else "rows"
        return f"{_PREFIX}{self.operation.name}.{self.rows}x{self.depth}.{kind}{self.step}"

    @property
    def clear(self) -> str:
        return f"{_PREFIX}clear.{self.operation.sum_type}.{self.rows}"

    @property
    def store(self) -> str:
        return f"{_PREFIX}store.{self.operation.sum_type}.{self.rows}"


def register_named(name: str) -> None:
    """Make sure that TVM has the intrinsic of this name, if it is one of these."""
    if not name.startswith(_PREFIX):
        return
    kind, second, *rest = name.removeprefix(_PREFIX).split(".")
    if kind in ("clear", "store"):
        (_register_clear if kind == "clear" else _register_store)(second, int(rest[0]))
        return
    rows, depth = map(int, second.split("x"))
    within = rest[0].startswith("within")
    step = int(rest[0].removeprefix("within" if within else "rows"))
    _register_multiply(TileShape(TILE_OPERATIONS[kind], rows, depth, step, within))


def register_shape(shape: TileShape) -> None:
    """Make sure that TVM has the intrinsics of this shape."""
    for name in (shape.name, shape.clear, shape.store):
        register_named(name)


@cache
def _register_clear(dtype: str, rows: int) -> None:
    with quick_inspect_stack():

        @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
        def description(a: T.handle) -> None:
            sums = T.match_buffer(a, (rows, COLUMNS), dtype=dtype, strides=["s", 1], offset_factor=1)
            with T.sblock("root"):
                T.reads()
                T.writes(sums[0:rows, 0:COLUMNS])
                for row, column in T.grid(rows, COLUMNS):
                    with T.sblock("init"):
                        i, j = T.axis.remap("SS", [row, column])
                        sums[i, j] = T.cast(0, dtype)

        @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
        def implementation(a: T.handle) -> None:
            stride = T.int32()
            sums = T.match_buffer(a, (rows, COLUMNS), dtype=dtype, strides=[stride, 1], offset_factor=1)
            with T.sblock("root"):
                T.reads()
                T.writes(sums[0:rows, 0:COLUMNS])
                T.evaluate(T.call_extern("int32", CLEAR, sums.access_ptr("w")))

    s_tir.TensorIntrin.register(f"{_PREFIX}clear.{dtype}.{rows}", description, implementation, override=True)


@cache
def _register_store(dtype: str, rows: int) -> None:
    size = tvm.DataType(dtype).itemsize

    with quick_inspect_stack():

        @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
        def description(a: T.handle, b: T.handle) -> None:
            sums = T.match_buffer(a, (rows, COLUMNS), dtype=dtype, strides=["s", 1], offset_factor=1)
            result = T.match_buffer(b, (rows, COLUMNS), dtype=dtype, strides=["t", 1], offset_factor=1)
            with T.sblock("root"):
                T.reads(sums[0:rows, 0:COLUMNS])
                T.writes(result[0:rows, 0:COLUMNS])
                for row, column in T.grid(rows, COLUMNS):
                    with T.sblock("copy"):
                        i, j = T.axis.remap("SS", [row, column])
                        result[i, j] = sums[i, j]

        @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
        def implementation(a: T.handle, b: T.handle) -> None:
            of_sums, of_result = T.int32(), T.int32()
            sums = T.match_buffer(a, (rows, COLUMNS), dtype=dtype, strides=[of_sums, 1], offset_factor=1)
            result = T.match_buffer(b, (rows, COLUMNS), dtype=dtype, strides=[of_result, 1], offset_factor=1)
            with T.sblock("root"):
                T.reads(sums[0:rows, 0:COLUMNS])
                T.writes(result[0:rows, 0:COLUMNS])
                T.evaluate(
                    T.call_extern("int32", STORE, sums.access_ptr("r"), result.access_ptr("w"), of_result * size)
                )

    s_tir.TensorIntrin.register(f"{_PREFIX}store.{dtype}.{rows}", description, implementation, override=True)


@cache
def _register_multiply(shape: TileShape) -> None:
    operation, rows, depth, step = shape.operation, shape.rows, shape.depth, shape.step
    group, data_type, weight_type, sums_type = (
        operation.group,
        operation.data_type,
        operation.weight_type,
        operation.sum_type,
    )
    groups = depth // group
    size = tvm.DataType(data_type).itemsize
    extent = (rows - 1) * step + 1
    length = (rows - 1) * step + depth
    settings = (operation.name, rows, depth * size, groups)

    with quick_inspect_stack():
        if shape.within_row:

            @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
            def description(a: T.handle, b: T.handle, c: T.handle) -> None:
                data = T.match_buffer(a, (length,), dtype=data_type, offset_factor=1)
                weights = T.match_buffer(b, (groups, COLUMNS, group), dtype=weight_type, offset_factor=1)
                sums = T.match_buffer(c, (rows, COLUMNS), dtype=sums_type, strides=["s", 1], offset_factor=1)
                with T.sblock("root"):
                    T.reads(sums[0:rows, 0:COLUMNS], data[0:length], weights[0:groups, 0:COLUMNS, 0:group])
                    T.writes(sums[0:rows, 0:COLUMNS])
                    for row, column, term in T.grid(rows, COLUMNS, depth):
                        with T.sblock("update"):
                            i, j, k = T.axis.remap("SSR", [row, column, term])
                            sums[i, j] = sums[i, j] + T.cast(data[i * step + k], sums_type) * T.cast(
                                weights[k // group, j, k % group], sums_type
                            )

            @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
            def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
                stride = T.int32()
                data = T.match_buffer(a, (length,), dtype=data_type, offset_factor=1)
                weights = T.match_buffer(b, (groups, COLUMNS, group), dtype=weight_type, offset_factor=1)
                sums = T.match_buffer(c, (rows, COLUMNS), dtype=sums_type, strides=[stride, 1], offset_factor=1)
                with T.sblock("root"):
                    T.reads(sums[0:rows, 0:COLUMNS], data[0:length], weights[0:groups, 0:COLUMNS, 0:group])
                    T.writes(sums[0:rows, 0:COLUMNS])
                    T.evaluate(
                        T.call_extern(
                            "int32",
                            MULTIPLY,
                            sums.access_ptr("rw"),
                            data.access_ptr("r"),
                            step * size,
                            weights.access_ptr("r"),
                            *settings,
                        )
                    )

        else:

            @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
            def description(a: T.handle, b: T.handle, c: T.handle) -> None:
                data = T.match_buffer(a, (extent, depth), dtype=data_type, strides=["d", 1], offset_factor=1)
                weights = T.match_buffer(b, (groups, COLUMNS, group), dtype=weight_type, offset_factor=1)
                sums = T.match_buffer(c, (rows, COLUMNS), dtype=sums_type, strides=["s", 1], offset_factor=1)
                with T.sblock("root"):
                    T.reads(
                        sums[0:rows, 0:COLUMNS],
                        data[0:extent, 0:depth],
                        weights[0:groups, 0:COLUMNS, 0:group],
                    )
                    T.writes(sums[0:rows, 0:COLUMNS])
                    for row, column, term in T.grid(rows, COLUMNS, depth):
                        with T.sblock("update"):
                            i, j, k = T.axis.remap("SSR", [row, column, term])
                            sums[i, j] = sums[i, j] + T.cast(data[i * step, k], sums_type) * T.cast(
                                weights[k // group, j, k % group], sums_type
                            )

            @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
            def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
                of_data, stride = T.int32(), T.int32()
                data = T.match_buffer(a, (extent, depth), dtype=data_type, strides=[of_data, 1], offset_factor=1)
                weights = T.match_buffer(b, (groups, COLUMNS, group), dtype=weight_type, offset_factor=1)
                sums = T.match_buffer(c, (rows, COLUMNS), dtype=sums_type, strides=[stride, 1], offset_factor=1)
                with T.sblock("root"):
                    T.reads(
                        sums[0:rows, 0:COLUMNS],
                        data[0:extent, 0:depth],
                        weights[0:groups, 0:COLUMNS, 0:group],
                    )
                    T.writes(sums[0:rows, 0:COLUMNS])
                    T.evaluate(
                        T.call_extern(
                            "int32",
                            MULTIPLY,
                            sums.access_ptr("rw"),
                            data.access_ptr("r"),
                            of_data * (step * size),
                            weights.access_ptr("r"),
                            *settings,
                        )
                    )

    s_tir.TensorIntrin.register(shape.name, description, implementation, override=True)
