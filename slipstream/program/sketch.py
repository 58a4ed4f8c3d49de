"""The sketch of a program: the instructions of its schedule without the values that were sampled.

Traces that say the same come in different clothes: those of a design space carry dead instructions, those of a
search or a database end in post-processing, and all name blocks as the operator's function happens to. A `Sketch`
is one canonical text for all of them: simplified, without post-processing, blocks numbered in program order. Two
operators with the same computation under other names have equal sketches.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slipstream.errors import SlipstreamError
from slipstream.program.decisions import Choice, Decisions, Location, Point, Points, Scale, Tile

Instruction = list[Any]  # [name, inputs, attributes, outputs], as TVM writes them

_TILE, _CHOICE, _LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"
SCALE = "SampleScale"  # of our own templates
_SAMPLING = (_TILE, _CHOICE, _LOCATION, SCALE)
_DIGEST_BYTES = 10


class SketchError(SlipstreamError):
    """A trace that cannot be read as a sketch with decisions."""


@dataclass(frozen=True)
class Sketch:
    """`text` is the canonical JSON of the instructions; equal sketches have equal texts.

    Instructions for another form of the operator (`graph/forms.py`) than its own stand with the form's name.
    """

    text: str

    @cached_property
    def digest(self) -> str:
        return hashlib.blake2b(self.text.encode(), digest_size=_DIGEST_BYTES).hexdigest()

    @cached_property
    def _content(self) -> Any:
        return json.loads(self.text)

    @property
    def form(self) -> str:
        """The form of the operator that the instructions schedule; empty for its own."""
        return str(self._content["form"]) if isinstance(self._content, dict) else ""

    @cached_property
    def instructions(self) -> list[Instruction]:
        content = self._content
        instructions: list[Instruction] = content["instructions"] if isinstance(content, dict) else content
        return instructions

    @property
    def has_instruction(self) -> bool:
        """Whether its innermost step is one of our intrinsics, such as a dot product."""
        return any(instruction[0] == "Tensorize" for instruction in self.instructions)

    @cached_property
    def sampled(self) -> tuple[int, ...]:
        """The positions of the instructions that need a decision."""
        return tuple(i for i, instruction in enumerate(self.instructions) if instruction[0] in _SAMPLING)

    def points(self, example: Decisions) -> Points:
        """What may be decided, for the operator that `example` is legal for: its extents are read off the tiles."""
        if len(example) != len(self.sampled):
            raise SketchError(f"the sketch has {len(self.sampled)} decisions, not {len(example)}")
        return tuple(_point(self.instructions[i], value) for i, value in zip(self.sampled, example, strict=True))

    @cached_property
    def _unrolled(self) -> tuple[tuple[bool, ...], ...]:
        """For each decision and each of its factors: does a loop of that length end up unrolled or vectorised?"""
        written_out = {i[1][0] for i in self.instructions if i[0] in ("Unroll", "Vectorize")}
        factors = {
            factor
            for name, inputs, _, outputs in self.instructions
            if name == "Split"
            for factor, loop in zip(inputs[1:], outputs, strict=True)
            if loop in written_out and isinstance(factor, str)
        }
        return tuple(tuple(out in factors for out in self.instructions[i][3]) for i in self.sampled)

    def body_size(self, decisions: Decisions) -> int:
        """How many copies of the innermost statement the program's text will have: a measure of compile time."""
        size = 1
        for value, flags in zip(decisions, self._unrolled, strict=True):
            if isinstance(value, tuple):
                size *= math.prod(factor for factor, flag in zip(value, flags, strict=True) if flag)
        return size


def read_instructions(
    instructions: Sequence[Any], decisions: Sequence[Any], block_names: Sequence[str], form: str = ""
) -> tuple[Sketch, Decisions]:
    """From a simplified trace in TVM's JSON form (plain lists) to a sketch and its decisions."""
    numbers = {name: number for number, name in enumerate(block_names)}
    canonical = [_rename_block(instruction, lambda name: _number(name, numbers)) for instruction in instructions]
    for instruction in canonical:
        if instruction[0].startswith("Sample") and instruction[0] not in _SAMPLING:
            raise SketchError(f"no decisions are known for the instruction {instruction[0]}")
    by_position = {int(position): value for position, value in decisions}
    content = {"form": form, "instructions": canonical} if form else canonical
    sketch = Sketch(json.dumps(content, separators=(",", ":")))
    if missing := [i for i in sketch.sampled if i not in by_position]:
        raise SketchError(f"the trace has no decision for its instruction {missing[0]}")
    return sketch, tuple(_value(by_position[i]) for i in sketch.sampled)


def write_instructions(sketch: Sketch, decisions: Decisions, block_names: Sequence[str]) -> list[Any]:
    """The other way: TVM's JSON of the trace, for a function whose blocks have these names."""
    instructions = [_rename_block(i, lambda name: _name(name, block_names)) for i in sketch.instructions]
    values = [
        [position, list(value) if isinstance(value, tuple) else value]
        for position, value in zip(sketch.sampled, decisions, strict=True)
    ]
    return [instructions, values]


def _rename_block(instruction: Instruction, rename: Any) -> Instruction:
    name, inputs, attributes, outputs = instruction
    if name == "GetSBlock":
        attributes = [rename(attributes[0]), *attributes[1:]]
    return [name, inputs, attributes, outputs]


def _number(name: str, numbers: Mapping[str, int]) -> str:
    """`conv2d` -> `#1`, and a block that scheduling made of it, `conv2d_rf`, -> `#1_rf`."""
    for known in sorted(numbers, key=len, reverse=True):
        if name == known or name.startswith(known + "_"):
            return f"#{numbers[known]}{name[len(known) :]}"
    return name


def _name(numbered: str, names: Sequence[str]) -> str:
    if not numbered.startswith("#"):
        return numbered
    number, _, rest = numbered[1:].partition("_")
    if int(number) >= len(names):
        raise SketchError(f"the sketch has a block {number}, the operator has {len(names)}")
    return names[int(number)] + (f"_{rest}" if rest else "")


def _value(value: Any) -> int | tuple[int, ...]:
    return tuple(int(v) for v in value) if isinstance(value, list | tuple) else int(value)


def _point(instruction: Instruction, value: int | tuple[int, ...]) -> Point:
    name, _, attributes, _ = instruction
    if name == _TILE:
        if not isinstance(value, tuple):
            raise SketchError(f"a tile needs factors, not {value}")
        return Tile(math.prod(value), int(attributes[0]), int(attributes[1]))
    if name == _CHOICE:
        return Choice(tuple(attributes[0]), tuple(attributes[1]))
    if name == SCALE:
        return Scale(tuple(attributes[0]), (1.0,) * len(attributes[0]))
    return Location()
