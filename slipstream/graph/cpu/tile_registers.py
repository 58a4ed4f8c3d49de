"""A pass that turns products of tiles into AMX instructions: which register each tile is in, and when it is loaded.

Sums have a register each. The others hold data and weights, the least recently used of which is replaced. A thread
configures its tiles at the start of its share of a parallel loop and releases them at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from slipstream.graph.cpu.tile_intrinsics import CLEAR, MULTIPLY, STORE
from slipstream.machine.dot_product import COLUMNS, TILE_REGISTERS
from slipstream.tvm_bridge.nodes import nodes

_CALL_EXTERN = tvm.ir.Op.get("tirx.call_extern")
_ROW_BYTES = 4 * COLUMNS
MOST_SUMS = TILE_REGISTERS - 2


def use_tile_registers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Lowered code whose tile products are instructions; any other code as it is."""
    calls = list(_tile_calls(func.body))
    if not calls:
        return func
    registers = _Registers.of(calls)
    body = _configured(func.body, registers)
    body = tvm_ffi.structural_map(body, ((tirx.SeqStmt, registers.in_sequence),))
    return func.with_body(tvm_ffi.structural_map(body, ((tirx.Evaluate, registers.alone),)))


def _tile_calls(body: Any) -> Iterator[Any]:
    return (evaluate.value for evaluate in nodes(body, tirx.Evaluate) if _step(evaluate))


def _step(statement: Any) -> str:
    """Which step of a tile product a statement is; empty for all else."""
    call = statement.value if isinstance(statement, tirx.Evaluate) else None
    if not isinstance(call, tvm.ir.Call) or call.op != _CALL_EXTERN:
        return ""
    name = str(call.args[0].value)
    return name if name in (CLEAR, MULTIPLY, STORE) else ""


def instruction(name: str, *operands: Any) -> Any:
    """A statement that is one instruction."""
    return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *operands))


@dataclass(frozen=True)
class _Registers:
    """Registers of sums by where these are in their buffer, and the shape of all tiles."""

    of_sums: dict[tuple[Any, int], int]
    rows: int
    depth_bytes: int
    weight_rows: int

    @staticmethod
    def of(calls: list[Any]) -> _Registers:
        shapes = {tuple(int(each) for each in call.args[6:]) for call in calls if str(call.args[0].value) == MULTIPLY}
        places = dict.fromkeys(_place(call.args[1]) for call in calls)
        if len(shapes) != 1 or len(places) > MOST_SUMS:
            raise ValueError(f"{len(places)} tiles of sums in {len(shapes)} shapes do not fit the tile registers")
        return _Registers({place: number for number, place in enumerate(places)}, *shapes.pop())

    @property
    def first_data(self) -> int:
        return len(self.of_sums)

    @property
    def first_weights(self) -> int:
        # Weights of all columns of a register tile stay: these are two where there are four tiles of sums.
        return self.first_data + (2 if len(self.of_sums) <= TILE_REGISTERS // 2 else 1)

    def in_sequence(self, sequence: Any) -> Any:
        loaded = _Loaded(self)
        statements = []
        for statement in sequence.seq:
            if _step(statement):
                statements += loaded.instructions(statement.value)
            else:
                statements.append(statement)
                if not isinstance(statement, tirx.Bind):
                    loaded = _Loaded(self)
        return tirx.SeqStmt(statements)

    def alone(self, statement: Any) -> Any:
        if not _step(statement):
            return statement
        found = _Loaded(self).instructions(statement.value)
        return found[0] if len(found) == 1 else tirx.SeqStmt(found)

    def configuration(self) -> list[int]:
        """What a tile configuration has in memory, as 8 words: rows and bytes in a row of each register."""
        table = bytearray(64)
        table[0] = 1
        for number in range(TILE_REGISTERS):
            is_data = self.first_data <= number < self.first_weights
            rows = self.weight_rows if number >= self.first_weights else self.rows
            table[16 + 2 * number] = self.depth_bytes if is_data else _ROW_BYTES
            table[48 + number] = rows
        return [int.from_bytes(table[at : at + 8], "little") for at in range(0, 64, 8)]


class _Loaded:
    """What the registers for data and weights hold while statements follow each other."""

    def __init__(self, registers: _Registers) -> None:
        self._registers = registers
        self._data: dict[int, Any] = dict.fromkeys(range(registers.first_data, registers.first_weights))
        self._weights: dict[int, Any] = dict.fromkeys(range(registers.first_weights, TILE_REGISTERS))

    def instructions(self, call: Any) -> list[Any]:
        name, sums, *rest = call.args
        number = self._registers.of_sums[_place(sums)]
        if str(name.value) == CLEAR:
            return [instruction("tilezero", _number(number))]
        if str(name.value) == STORE:
            return [instruction("tilestored64", _number(number), _address(rest[0]), _stride(rest[1]))]
        data, stride, weights, operation, *_ = rest
        data, weights = _address(data), _address(weights)
        loads, of_data = self._load(self._data, data, stride)
        more, of_weights = self._load(self._weights, weights, _ROW_BYTES)
        product = instruction(str(operation.value), _number(number), _number(of_data), _number(of_weights))
        return [*loads, *more, product]

    def _load(self, held: dict[int, Any], address: Any, stride: Any) -> tuple[list[Any], int]:
        """The load, if one is needed, and the register; `held` is in the order of use."""
        number = next((n for n, what in held.items() if what is not None and _same(what, address)), None)
        is_new = number is None
        if number is None:
            number = next(iter(held))
        del held[number]
        held[number] = address
        return [instruction("tileloadd64", _number(number), address, _stride(stride))] if is_new else [], number


def _same(a: Any, b: Any) -> bool:
    return bool(tvm_ffi.structural_equal(a, b, map_free_vars=False))


def _place(pointer: Any) -> tuple[Any, int]:
    """The buffer and the element that `tvm_access_ptr` points to."""
    _, buffer, offset, *_ = pointer.args
    if not isinstance(offset, tirx.IntImm):
        raise ValueError("a tile of sums is not at a fixed place: its loops have to be unrolled")
    return buffer, int(offset)


def _address(pointer: Any) -> Any:
    """What `tvm_access_ptr` points to. TVM refuses to lower one into memory that tensors of several types share."""
    of_type, buffer, offset, *_ = pointer.args
    start = buffer.data if isinstance(buffer.ty, tirx.buffer.BufferType) else buffer
    return tirx.handle_add_byte_offset(start, offset * tvm.DataType(str(of_type.ty.dtype)).itemsize)


def _number(register: int) -> Any:
    return tirx.IntImm("int8", register)


def _stride(stride: Any) -> Any:
    return (
        tirx.Cast("int64", stride) if not isinstance(stride, int | tirx.IntImm) else tirx.IntImm("int64", int(stride))
    )


def _configured(body: Any, registers: _Registers) -> Any:
    """The parallel loop with tiles between a configuration and its release in each thread; without such a loop, the
    statements with tiles."""
    total = len(list(_tile_calls(body)))
    done = False

    def around_loop(loop: Any) -> Any:
        nonlocal done
        if loop.kind != tirx.ForKind.PARALLEL or not list(_tile_calls(loop)):
            return loop
        done = True
        inside = tirx.SeqStmt([*_configure(registers), loop, instruction("tilerelease")])
        return tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_parallel_launch_point", tirx.IntImm("int32", 1), inside)

    def around_all(sequence: Any) -> Any:
        nonlocal done
        if done or len(list(_tile_calls(sequence))) < total:
            return sequence
        done = True
        return tirx.SeqStmt([*_configure(registers), *sequence.seq, instruction("tilerelease")])

    wrapped = tvm_ffi.structural_map(body, ((tirx.For, around_loop),))
    return wrapped if done else tvm_ffi.structural_map(body, ((tirx.SeqStmt, around_all),))


def _configure(registers: _Registers) -> list[Any]:
    words = registers.configuration()
    table = tirx.decl_buffer([len(words)], "uint64", "tile_configuration")
    stores = [
        tirx.BufferStore(table, tirx.IntImm("uint64", word), [tirx.IntImm("int32", at)])
        for at, word in enumerate(words)
    ]
    address = tirx.address_of(tirx.BufferLoad(table, [tirx.IntImm("int32", 0)]))
    return [tirx.AllocBuffer(table, {}), *stores, instruction("ldtilecfg", address)]
