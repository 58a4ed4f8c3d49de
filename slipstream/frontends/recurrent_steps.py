"""The steps of LSTM, GRU and RNN as one program: a sequential loop over time, with the state in memory.

The product of the inputs with their weights is not part of it: it is one matmul over all steps. What is left for a
step is the product of the state with its weights and the gates. A tile is all gates of some elements of the state: its
sums stay in registers until the new state is computed from them. Directions and groups of sequences are independent
and are distributed over the cores; where there is only one, the tiles of each step are.
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
# Sums of a tile: 16 registers of 128 bits, 4 of 512.
_TILE = 64
_MOST_SEQUENCES = 2
# With fewer bytes of weights, distributing each step over the cores takes longer than the step.
_SHARED_BYTES = 256 << 10
_MOST_CORES = 4


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
    def resets_state(self) -> bool:
        """Whether a gate is applied to the state before its product: a GRU then has two products in a step."""
        return self.kind == "gru" and not self.linear_before_reset

    @property
    def sequences(self) -> int:
        """Sequences that a core computes together; a quantised state has one scale for all."""
        if self.quantised:
            return self.batch
        together = _MOST_SEQUENCES if self.directions * self.batch >= 2 * _MOST_SEQUENCES else 1
        return together if self.batch % together == 0 else 1

    def width(self, gates: int) -> int:
        """Elements of the state in a tile of so many gates."""
        most = max(1, _TILE // (gates * min(self.sequences, _MOST_SEQUENCES)))
        return min(self.hidden, 1 << (most.bit_length() - 1))

    def first_elements(self, gates: int) -> list[int]:
        """Where each tile begins. The last one may overlap the one before: both compute the same there."""
        width = self.width(gates)
        return [min(first, self.hidden - width) for first in range(0, self.hidden, width)]

    @property
    def cores(self) -> int:
        """Over how many cores the tiles of one step are distributed."""
        alone = self.directions * self.batch == self.sequences
        bytes_of_weights = 4 * self.gates * self.hidden * self.hidden
        return _MOST_CORES if alone and bytes_of_weights >= _SHARED_BYTES else 1


def recurrent_steps(layer: Layer, tensors: dict[str, te.Tensor]) -> list[te.Tensor]:
    """Outputs of all steps [steps, directions, batch, hidden], the last state and, for an LSTM, the last cell.

    `tensors`: `projected` [steps, batch, directions, gates * hidden] (inputs times weights plus bias), `weights` and,
    for a GRU that resets before its product, `reset_weights` [directions, tiles, hidden, gates * width], `state` and
    `cell` [directions, batch, hidden]; if the layer has them `lengths` [batch], `state_bias` [directions, hidden] and
    `peepholes` [directions, 3 * hidden].
    """
    names = list(tensors)
    states = 2 if layer.kind == "lstm" else 1
    small = (layer.directions, layer.batch, layer.hidden)
    shapes = [(layer.steps, *small), *[small] * states]

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        given = {name: ir.buffer_proxy(buffer) for name, buffer in zip(names, ins, strict=True)}
        return _build(layer, given, [ir.buffer_proxy(out) for out in outs])

    inputs = [tensors[name] for name in names]
    made = te.extern(shapes, inputs, body, dtype=[layer.dtype] * (1 + states), name=f"{layer.kind}_steps")
    return list(made)


def _build(layer: Layer, given: dict[str, Any], outs: list[Any]) -> Any:
    groups = layer.batch // layer.sequences
    units = layer.directions * groups
    with IRBuilder() as builder:
        loop = ir.parallel if units > 1 else ir.serial
        with loop(0, units) as unit:
            _Unit(layer, given, outs, unit // groups, (unit % groups) * layer.sequences).all_steps()
        return builder.get()


Element = Callable[[int, Any], Any]


class _Unit:
    """All steps of one direction for some sequences, from `first` on."""

    def __init__(self, layer: Layer, given: dict[str, Any], outs: list[Any], direction: Any, first: Any) -> None:
        self.layer, self.given = layer, given
        self.direction, self.first = direction, first
        self.outputs, self.ends = outs[0], outs[1:]
        self.held = layer.sequences * layer.hidden
        # State and cell: a step reads one half and writes the other.
        self.states = [self._buffer(2 * self.held) for _ in self.ends]
        self.changed = self._buffer(self.held) if layer.quantised or layer.resets_state else None

    def _buffer(self, elements: int) -> Any:
        return ir.buffer_proxy(ir.alloc_buffer((elements,), self.layer.dtype, layout=None))

    def all_steps(self) -> None:
        layer, d = self.layer, self.direction
        for name, held in zip(("state", "cell"), self.states, strict=False):
            with ir.serial(0, layer.sequences) as b, ir.serial(0, layer.hidden) as j:
                held[b * layer.hidden + j] = self.given[name][d, self.first + b, j]
        with ir.serial(0, layer.steps) as step:
            self._step(step)
        for held, end in zip(self.states, self.ends, strict=True):
            with ir.serial(0, layer.sequences) as b, ir.serial(0, layer.hidden) as j:
                end[d, self.first + b, j] = held[(layer.steps % 2) * self.held + b * layer.hidden + j]

    def _place(self, step: Any, b: int, j: Any) -> Any:
        """Where element `j` of a sequence's state is before a step."""
        return (step % 2) * self.held + b * self.layer.hidden + j

    def _step(self, step: Any) -> None:
        layer, hidden = self.layer, self.layer.hidden
        times = [self._time(self.first + b, step) for b in range(layer.sequences)]

        def state(b: int, k: Any) -> Any:
            return self.states[0][self._place(step, b, k)]

        def changed(b: int, k: Any) -> Any:
            assert self.changed is not None
            return self.changed[b * hidden + k]

        def projected(b: int, column: Any) -> Any:
            return self.given["projected"][times[b][0], self.first + b, self.direction, column]

        def finish(b: int, j: Any, gates: Sequence[Any]) -> None:
            new = self._new_state(b, j, gates, state(b, j), projected, step, times[b][1])
            self._store(b, j, new, state(b, j), step, times[b])

        if layer.quantised:
            self._quantise(state)
        if layer.resets_state:
            self._tiles("reset_weights", [(1, state)], projected, self._reset(state))
            # The update gate and the candidate, whose state has been reset.
            self._tiles("weights", [(0, state), (2, changed)], projected, finish)
        else:
            source = changed if layer.quantised else state
            self._tiles("weights", [(gate, source) for gate in range(layer.gates)], projected, finish)

    def _tiles(
        self,
        weights: str,
        gates: Sequence[tuple[int, Element]],
        start: Element,
        finish: Callable[[int, Any, Sequence[Any]], None],
    ) -> None:
        """Sum up `gates`, each with what it is a product of, and hand the sums to `finish`, tile by tile."""
        layer = self.layer
        width, tiles = layer.width(len(gates)), len(layer.first_elements(len(gates)))
        cores = min(layer.cores, tiles)
        each = -(-tiles // cores)
        with (ir.parallel if cores > 1 else ir.serial)(0, cores) as core, ir.serial(0, each) as own:
            tile = core * each + own if tiles % cores == 0 else tirx.min(core * each + own, tiles - 1)
            first = tile * width if layer.hidden % width == 0 else tirx.min(tile * width, layer.hidden - width)
            sums = [[self._buffer(width) for _ in gates] for _ in range(layer.sequences)]
            for b, row in enumerate(sums):
                for (gate, _), total in zip(gates, row, strict=True):
                    with ir.vectorized(0, width) as c:
                        total[c] = self._start(b, gate, first + c, start)
            with ir.serial(0, layer.hidden) as k:
                for b, row in enumerate(sums):
                    for number, ((_, source), total) in enumerate(zip(gates, row, strict=True)):
                        with ir.vectorized(0, width) as c:
                            weight = self.given[weights][self.direction, tile, k, number * width + c]
                            total[c] = total[c] + source(b, k) * weight
            for b, row in enumerate(sums):
                with ir.vectorized(0, width) as c:
                    finish(b, first + c, [total[c] for total in row])

    def _start(self, b: int, gate: int, j: Any, projected: Element) -> Any:
        if self.layer.kind == "gru" and self.layer.linear_before_reset and gate == 2:
            return self.given["state_bias"][self.direction, j]  # the input's part is added after the reset
        return projected(b, gate * self.layer.hidden + j)

    def _time(self, sequence: Any, step: Any) -> tuple[Any, Any]:
        """(the time whose input this step reads, whether the sequence is still running)."""
        layer = self.layer
        if not layer.lengths:
            running, backwards = None, layer.steps - 1 - step
        else:
            length = tirx.min(self.given["lengths"][sequence], layer.steps)  # a longer one would read foreign memory
            running = step < length
            backwards = tirx.Select(running, length - 1 - step, step)
        if not any(layer.reverse):
            return step, running
        if all(layer.reverse):
            return backwards, running
        return tirx.Select(self.direction == 1, backwards, step), running

    def _reset(self, state: Element) -> Callable[[int, Any, Sequence[Any]], None]:
        """Keeps the part of the state that a GRU's reset gate lets through."""

        def finish(b: int, j: Any, gates: Sequence[Any]) -> None:
            assert self.changed is not None
            self.changed[b * self.layer.hidden + j] = self._activate(0, gates[0]) * state(b, j)

        return finish

    def _quantise(self, state: Element) -> None:
        """Round the state to 8 bits with one scale, as `com.microsoft.DynamicQuantizeLSTM` does at every step."""
        layer = self.layer
        assert self.changed is not None

        def number(value: float) -> Any:
            return tirx.const(value, layer.dtype)

        limits, scale = self._buffer(2), self._buffer(2)
        limits[0] = number(0)
        limits[1] = number(0)
        for b in range(layer.sequences):
            with ir.serial(0, layer.hidden) as j:
                limits[0] = tirx.min(limits[0], state(b, j))
                limits[1] = tirx.max(limits[1], state(b, j))
        scale[0] = tirx.Select(limits[1] == limits[0], number(1), (limits[1] - limits[0]) / number(255))
        scale[1] = tirx.nearbyint(-limits[0] / scale[0])
        for b in range(layer.sequences):
            with ir.serial(0, layer.hidden) as j:
                level = tirx.nearbyint(state(b, j) / scale[0]) + scale[1]
                level = tirx.min(tirx.max(level, number(0)), number(255))
                self.changed[b * layer.hidden + j] = (level - scale[1]) * scale[0]

    def _new_state(
        self, b: int, j: Any, gates: Sequence[Any], old: Any, projected: Element, step: Any, running: Any
    ) -> Any:
        """Element `j` of the new state of one sequence, from the sums of its gates."""
        layer = self.layer
        if layer.kind == "rnn":
            return self._activate(0, gates[0])
        if layer.kind == "lstm":
            return self._update_cell(b, j, gates, step, running)
        candidate = gates[-1]
        if layer.linear_before_reset:
            candidate = projected(b, 2 * layer.hidden + j) + self._activate(0, gates[1]) * candidate
        keep = self._activate(0, gates[0])
        return (tirx.const(1, layer.dtype) - keep) * self._activate(1, candidate) + keep * old

    def _update_cell(self, b: int, j: Any, gates: Sequence[Any], step: Any, running: Any) -> Any:
        """Store the new cell; the new state of an LSTM."""
        layer, d = self.layer, self.direction
        cell = self.states[1]
        old = cell[self._place(step, b, j)]

        def peephole(number: int, value: Any) -> Any:
            if not layer.peepholes:
                return tirx.const(0, layer.dtype)
            return self.given["peepholes"][d, number * layer.hidden + j] * value

        write = self._activate(0, gates[0] + peephole(0, old))
        keep = tirx.const(1, layer.dtype) - write if layer.coupled else self._activate(0, gates[2] + peephole(2, old))
        new = keep * old + write * self._activate(1, gates[3])
        place = self._place(step + 1, b, j)
        cell[place] = new if running is None else tirx.Select(running, new, old)
        # Read back, so that the expression is not repeated; where the sequence has ended the result is unused.
        stored = cell[place]
        show = self._activate(0, gates[1] + peephole(1, stored))
        return show * _ACTIVATIONS[layer.activations[2]](stored, layer.dtype)

    def _store(self, b: int, j: Any, new: Any, old: Any, step: Any, time: tuple[Any, Any]) -> None:
        layer = self.layer
        when, running = time
        state, place = self.states[0], self._place(step + 1, b, j)
        if running is None:
            state[place] = new
            self.outputs[when, self.direction, self.first + b, j] = state[place]
            return
        state[place] = tirx.Select(running, new, old)
        shown = tirx.Select(running, state[place], tirx.const(0, layer.dtype))
        self.outputs[when, self.direction, self.first + b, j] = shown

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
