"""The steps of LSTM, GRU and RNN as one program: a sequential loop over time, with the state in memory.

The product of the inputs with their weights is not part of it: it is one matmul over all steps. What is left for a
step is the product of the state with its weights, summed up in a register tile, and the gates. Directions and groups of
sequences are independent and are distributed over the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as ir

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
DEFAULT_ACTIVATIONS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}
# Accumulators of a tile, as elements: sequences x columns.
_TILE = {1: 64, 2: 32, 3: 16, 4: 16}
_MOST_SEQUENCES = 4
_VECTOR = 16


@dataclass(frozen=True)
class Layer:
    """What one recurrent node computes. `reverse` says for each direction whether it runs from the end."""

    kind: str
    steps: int
    batch: int
    hidden: int
    reverse: tuple[bool, ...]
    dtype: str
    activations: tuple[str, ...]
    clip: float = 0.0
    linear_before_reset: bool = False
    coupled: bool = False
    peepholes: bool = False
    lengths: bool = False
    quantised: bool = False

    @property
    def directions(self) -> int:
        return len(self.reverse)

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def sequences(self) -> int:
        """Sequences that a core computes together; a quantised state has one scale for all."""
        if self.quantised:
            return self.batch
        most = _MOST_SEQUENCES if self.directions * self.batch > _MOST_SEQUENCES else 1
        return max(n for n in range(1, most + 1) if self.batch % n == 0)

    def columns(self, outputs: int) -> int:
        """Columns of a register tile: how wide the rows of packed weights are."""
        most = _TILE.get(self.sequences, 16)
        return max(n for n in range(1, most + 1) if outputs % n == 0)


def recurrent_steps(layer: Layer, tensors: dict[str, te.Tensor]) -> list[te.Tensor]:
    """Outputs of all steps [steps, directions, batch, hidden], the last state and, for an LSTM, the last cell.

    `tensors`: `projected` [steps, batch, directions, gates * hidden] (inputs times weights plus bias), `weights` and,
    for a GRU that resets before its product, `reset_weights` [directions, columns / tile, hidden, tile], `state` and
    `cell` [directions, batch, hidden]; if the layer has them `lengths` [batch], `state_bias` [directions, hidden] and
    `peepholes` [directions, 3 * hidden].
    """
    names = list(tensors)
    states = 2 if layer.kind == "lstm" else 1
    small = (layer.directions, layer.batch, layer.hidden)
    shapes = [(layer.steps, *small), *[small] * states]

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        given = {name: ir.buffer_proxy(buffer) for name, buffer in zip(names, ins, strict=True)}
        return _Program(layer, given, [ir.buffer_proxy(out) for out in outs]).build()

    inputs = [tensors[name] for name in names]
    made = te.extern(shapes, inputs, body, dtype=[layer.dtype] * (1 + states), name=f"{layer.kind}_steps")
    return list(made)


class _Program:
    def __init__(self, layer: Layer, given: dict[str, Any], outs: list[Any]) -> None:
        self.layer, self.given = layer, given
        self.outputs, self.state = outs[0], outs[1]
        self.cell = outs[2] if layer.kind == "lstm" else None
        self.lanes = max(n for n in range(1, _VECTOR + 1) if layer.hidden % n == 0)

    def build(self) -> Any:
        layer = self.layer
        groups = layer.batch // layer.sequences
        units = layer.directions * groups
        with IRBuilder() as builder:
            loop = ir.parallel if units > 1 else ir.serial
            with loop(0, units) as unit:
                self._unit(unit // groups, (unit % groups) * layer.sequences)
            return builder.get()

    def _unit(self, direction: Any, first: Any) -> None:
        """All steps of one direction for the sequences from `first` on."""
        layer = self.layer
        width = layer.gates * layer.hidden
        gates = ir.buffer_proxy(ir.alloc_buffer((layer.sequences * width,), layer.dtype))
        scratch = self._scratch()
        with ir.serial(0, layer.sequences) as b, ir.serial(0, layer.hidden) as j:
            self.state[direction, first + b, j] = self.given["state"][direction, first + b, j]
            if self.cell is not None:
                self.cell[direction, first + b, j] = self.given["cell"][direction, first + b, j]
        with ir.serial(0, layer.steps) as step:
            times = [self._time(direction, first + b, step) for b in range(layer.sequences)]

            def projected(b: int, column: Any) -> Any:
                return self.given["projected"][times[b][0], first + b, direction, column]

            def state(b: int, k: Any) -> Any:
                return self.state[direction, first + b, k]

            def from_scratch(b: int, k: Any) -> Any:
                return scratch[b * layer.hidden + k]

            if layer.quantised:
                self._quantise(direction, scratch)
            source = from_scratch if layer.quantised else state
            if layer.kind == "gru" and not layer.linear_before_reset:
                before = 2 * layer.hidden
                self._product("weights", before, direction, source, projected, gates, width, 0)
                self._reset(direction, first, gates, scratch)
                self._product("reset_weights", layer.hidden, direction, from_scratch, projected, gates, width, before)
            else:
                self._product("weights", width, direction, source, projected, gates, width, 0)
            with ir.serial(0, layer.hidden // self.lanes) as outer:
                for b in range(layer.sequences):
                    with ir.vectorized(0, self.lanes) as inner:
                        self._update(direction, first, b, outer * self.lanes + inner, gates, times[b])

    def _scratch(self) -> Any:
        layer = self.layer
        if layer.quantised or (layer.kind == "gru" and not layer.linear_before_reset):
            return ir.buffer_proxy(ir.alloc_buffer((layer.sequences * layer.hidden,), layer.dtype))
        return None

    def _time(self, direction: Any, sequence: Any, step: Any) -> tuple[Any, Any]:
        """(the time whose input this step reads, whether the sequence is still running)."""
        layer = self.layer
        length = self.given["lengths"][sequence] if layer.lengths else layer.steps
        running = step < length if layer.lengths else None
        backwards = length - 1 - step
        if layer.lengths:
            backwards = tirx.Select(running, backwards, step)
        if not any(layer.reverse):
            return step, running
        if all(layer.reverse):
            return backwards, running
        return tirx.Select(direction == 1, backwards, step), running

    def _product(
        self,
        weights: str,
        outputs: int,
        direction: Any,
        source: Callable[[int, Any], Any],
        start: Callable[[int, Any], Any],
        gates: Any,
        width: int,
        offset: int,
    ) -> None:
        """gates[offset:] = start + source x weights, `outputs` columns of them."""
        layer = self.layer
        columns = layer.columns(outputs)
        after_reset = layer.kind == "gru" and layer.linear_before_reset
        with ir.serial(0, outputs // columns) as tile:
            sums = ir.buffer_proxy(ir.alloc_buffer((layer.sequences * columns,), layer.dtype))
            for b in range(layer.sequences):
                with ir.vectorized(0, columns) as c:
                    column = tile * columns + c
                    begin = start(b, offset + column)
                    if after_reset:
                        bias = self.given["state_bias"][direction, tirx.max(column - 2 * layer.hidden, 0)]
                        begin = tirx.Select(column < 2 * layer.hidden, begin, bias)
                    sums[b * columns + c] = begin
            with ir.serial(0, layer.hidden) as k:
                for b in range(layer.sequences):
                    with ir.vectorized(0, columns) as c:
                        weight = self.given[weights][direction, tile, k, c]
                        sums[b * columns + c] = sums[b * columns + c] + source(b, k) * weight
            for b in range(layer.sequences):
                with ir.vectorized(0, columns) as c:
                    gates[b * width + offset + tile * columns + c] = sums[b * columns + c]

    def _reset(self, direction: Any, first: Any, gates: Any, scratch: Any) -> None:
        """The part of the state that a GRU's reset gate lets through."""
        layer = self.layer
        with ir.serial(0, layer.hidden // self.lanes) as outer:
            for b in range(layer.sequences):
                with ir.vectorized(0, self.lanes) as inner:
                    j = outer * self.lanes + inner
                    gate = self._activate(0, gates[b * layer.gates * layer.hidden + layer.hidden + j])
                    scratch[b * layer.hidden + j] = gate * self.state[direction, first + b, j]

    def _quantise(self, direction: Any, scratch: Any) -> None:
        """The state rounded to 8 bits with one scale, as `com.microsoft.DynamicQuantizeLSTM` does at every step."""
        layer = self.layer
        limits = ir.buffer_proxy(ir.alloc_buffer((2,), layer.dtype))
        limits[0] = tirx.const(0, layer.dtype)
        limits[1] = tirx.const(0, layer.dtype)
        with ir.serial(0, layer.sequences) as b, ir.serial(0, layer.hidden) as j:
            limits[0] = tirx.min(limits[0], self.state[direction, b, j])
            limits[1] = tirx.max(limits[1], self.state[direction, b, j])
        scale = (limits[1] - limits[0]) / tirx.const(255, layer.dtype)
        scale = tirx.Select(limits[1] == limits[0], tirx.const(1, layer.dtype), scale)
        parameters = ir.buffer_proxy(ir.alloc_buffer((2,), layer.dtype))
        parameters[0] = scale
        parameters[1] = tirx.nearbyint(-limits[0] / parameters[0])
        with ir.serial(0, layer.sequences) as b, ir.serial(0, layer.hidden) as j:
            level = tirx.nearbyint(self.state[direction, b, j] / parameters[0]) + parameters[1]
            level = tirx.min(tirx.max(level, tirx.const(0, layer.dtype)), tirx.const(255, layer.dtype))
            scratch[b * layer.hidden + j] = (level - parameters[1]) * parameters[0]

    def _update(self, direction: Any, first: Any, b: int, j: Any, gates: Any, time: tuple[Any, Any]) -> None:
        """The new state of element `j` of one sequence, from the sums of its gates."""
        layer, hidden = self.layer, self.layer.hidden
        when, running = time
        sequence = first + b

        def gate(number: int) -> Any:
            return gates[b * layer.gates * hidden + number * hidden + j]

        old = self.state[direction, sequence, j]
        one = tirx.const(1, layer.dtype)
        if layer.kind == "rnn":
            new = self._activate(0, gate(0))
        elif layer.kind == "gru":
            keep = self._activate(0, gate(0))
            candidate = gate(2)
            if layer.linear_before_reset:
                candidate = (
                    self.given["projected"][when, sequence, direction, 2 * hidden + j]
                    + self._activate(0, gate(1)) * candidate
                )
            new = (one - keep) * self._activate(1, candidate) + keep * old
        else:
            new = self._update_cell(direction, sequence, j, gate, running)
        shown = new
        if running is not None:
            shown = tirx.Select(running, new, tirx.const(0, layer.dtype))
            new = tirx.Select(running, new, old)
        self.outputs[when, direction, sequence, j] = shown
        self.state[direction, sequence, j] = new

    def _update_cell(self, direction: Any, sequence: Any, j: Any, gate: Callable[[int], Any], running: Any) -> Any:
        """Store the new cell; the new state of an LSTM."""
        layer = self.layer
        cell = self.cell
        assert cell is not None
        old = cell[direction, sequence, j]

        def peephole(number: int, value: Any) -> Any:
            if not layer.peepholes:
                return tirx.const(0, layer.dtype)
            return self.given["peepholes"][direction, number * layer.hidden + j] * value

        write = self._activate(0, gate(0) + peephole(0, old))
        keep = tirx.const(1, layer.dtype) - write if layer.coupled else self._activate(0, gate(2) + peephole(2, old))
        new = keep * old + write * self._activate(1, gate(3))
        cell[direction, sequence, j] = new if running is None else tirx.Select(running, new, old)
        # The cell is read back, so that its expression is not repeated; where the sequence has ended it is unused.
        stored = cell[direction, sequence, j]
        show = self._activate(0, gate(1) + peephole(1, stored))
        return show * _ACTIVATIONS[layer.activations[2]](stored, layer.dtype)

    def _activate(self, number: int, value: Any) -> Any:
        layer = self.layer
        if layer.clip:
            bound = tirx.const(layer.clip, layer.dtype)
            value = tirx.min(tirx.max(value, -bound), bound)
        return _ACTIVATIONS[layer.activations[number]](value, layer.dtype)


def _exp(x: Any, dtype: str) -> Any:
    """exp as a polynomial that vectorises, within a few units in the last place of float32."""
    if dtype != "float32":
        return tirx.exp(x)

    def number(value: float) -> Any:
        return tirx.const(value, "float32")

    x = tirx.min(tirx.max(x, number(-87.0)), number(88.0))
    power = tirx.floor(x * number(1.4426950408889634) + number(0.5))
    # log(2) in two parts, the first exact: the difference keeps all its digits.
    rest = x - power * number(0.693359375) - power * number(-2.12194440e-4)
    series = number(1.0 / 5040)
    for factorial in (720, 120, 24, 6, 2, 1, 1):
        series = series * rest + number(1.0 / factorial)
    exponent = (tirx.Cast("int32", power) + tirx.const(127, "int32")) << tirx.const(23, "int32")
    return tirx.reinterpret("float32", exponent) * series


def _sigmoid(x: Any, dtype: str) -> Any:
    one = tirx.const(1, dtype)
    return one / (one + _exp(-x, dtype))


def _tanh(x: Any, dtype: str) -> Any:
    two = tirx.const(2, dtype)
    return two * _sigmoid(two * x, dtype) - tirx.const(1, dtype)


def _hard_sigmoid(x: Any, dtype: str) -> Any:
    line = x * tirx.const(0.2, dtype) + tirx.const(0.5, dtype)
    return tirx.max(tirx.const(0, dtype), tirx.min(tirx.const(1, dtype), line))


# Those without parameters, or with the default ones.
_ACTIVATIONS: dict[str, Callable[[Any, str], Any]] = {
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "relu": lambda x, dtype: tirx.max(x, tirx.const(0, dtype)),
    "softsign": lambda x, dtype: x / (tirx.const(1, dtype) + tirx.abs(x)),
    "hardsigmoid": _hard_sigmoid,
}
ACTIVATIONS = frozenset(_ACTIVATIONS)
