"""A sketch as Python code a person can read: TVM's schedule calls, with a mark wherever a decision goes.

`<3>` in the code stands for decision 3 of the program and `<3.1>` for its factor 1; `fill_in` puts them in. So one
text serves all programs of a sketch.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from slipstream.program.decisions import AT_ROOT, INLINED, Decisions
from slipstream.program.sketch import SCALE, Instruction, Sketch

_MARK = re.compile(r"<(\d+)(?:\.(\d+))?>")
_TILE, _CHOICE, _LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"
# Methods that return a list, also of one.
_LISTS = ("GetChildBlocks", "GetConsumers", "GetLoops", "GetOutputBlocks", "GetProducers", "Split")


@dataclass(frozen=True)
class Decided:
    """What one decision is about, in words. `candidates` are the values a choice chooses from."""

    label: str
    kind: str  # "tile", "choice" or "location"
    candidates: tuple[Any, ...] = ()


@dataclass(frozen=True)
class ScheduleCode:
    """`code` with marks, and what each decision is about."""

    code: str
    decided: tuple[Decided, ...]


def write_code(sketch: Sketch) -> ScheduleCode:
    """The code of a sketch. Instructions that nothing uses are left out."""
    marks: dict[str, str] = {}
    origin = _origins(sketch.instructions)
    decided: list[Decided] = []
    lines: list[str] = []
    wanted = _wanted(sketch.instructions)
    for place, instruction in enumerate(sketch.instructions):
        name, inputs, attributes, outputs = instruction
        number = len(decided)
        if name == SCALE:  # of a template, which has no other instructions
            decided.append(Decided(outputs[0].replace("_", " "), "choice", tuple(attributes[0])))
            lines.append(f"{outputs[0]} = <{number}>")
        elif name in (_TILE, _CHOICE, _LOCATION):
            decided.append(_decided(instruction, origin))
            if name == _LOCATION:  # the loop of that number is found when the code runs
                lines.append(f"{outputs[0]} = sch.sample_compute_location({inputs[0]}, decision=<{number}>)")
            else:
                parts = name == _TILE
                marks |= {out: f"<{number}.{n}>" if parts else f"<{number}>" for n, out in enumerate(outputs)}
        elif place in wanted:
            lines.append(_line(name, inputs, attributes, outputs, marks))
    if any("'#" in line for line in lines):
        lines.insert(0, "# '#0' stands for the name of the operator's first block")
    return ScheduleCode("\n".join(lines), tuple(decided))


def fill_in(code: ScheduleCode, decisions: Decisions) -> str:
    """The code of one program."""

    def value(match: re.Match[str]) -> str:
        number, part = int(match[1]), match[2]
        decision = decisions[number] if number < len(decisions) else "?"
        if part is not None and isinstance(decision, tuple):
            return str(decision[int(part)])
        decided = code.decided[number]
        return str(decision) if decided.kind == "location" else say(decided, decision)

    return _MARK.sub(value, code.code)


def say(decided: Decided, value: Any) -> str:
    """A decision's value in words."""
    if decided.kind == "choice" and isinstance(value, int) and value < len(decided.candidates):
        return str(decided.candidates[value])
    if decided.kind == "location":
        return {INLINED: "inlined", AT_ROOT: "root"}.get(value, f"loop {value}")
    return " × ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _wanted(instructions: list[Instruction]) -> set[int]:
    """Places of the instructions that change the program, or make something that such a one uses."""
    used: set[str] = set()
    wanted = set()
    for place in range(len(instructions) - 1, -1, -1):
        name, inputs, _, outputs = instructions[place]
        if not name.startswith("Get") or used & set(outputs):
            wanted.add(place)
            used.update(value for value in inputs if isinstance(value, str))
    return wanted


def _origins(instructions: list[Instruction]) -> dict[str, str]:
    """Where blocks and loops come from, in words: `loop 3 of block 1`."""
    words: dict[str, str] = {}
    for name, inputs, attributes, outputs in instructions:
        if name == "GetSBlock":
            words[outputs[0]] = f"block {str(attributes[0]).lstrip('#')}"
        elif name == "GetChildBlocks":
            words |= {out: f"block {n}" for n, out in enumerate(outputs)}
        elif name == "GetLoops":
            block = words.get(inputs[0], f"block {inputs[0]}")
            words |= {out: f"loop {n} of {block}" for n, out in enumerate(outputs)}
        elif name in ("Split", "Fuse"):
            words |= {out: f"{name.lower()} loop {out}" for out in outputs}
    return words


def _decided(instruction: Instruction, origin: dict[str, str]) -> Decided:
    name, inputs, attributes, _ = instruction
    if name == _TILE:
        return Decided(origin.get(str(inputs[0]), f"loop {inputs[0]}"), "tile")
    if name == _CHOICE:
        return Decided("choice", "choice", tuple(attributes[0]))
    return Decided(f"where to compute {origin.get(str(inputs[0]), inputs[0])}", "location")


def _line(name: str, inputs: list[Any], attributes: list[Any], outputs: list[str], marks: dict[str, str]) -> str:
    call = f"sch.{_snake(name)}({', '.join(_arguments(name, inputs, attributes, marks))})"
    many = len(outputs) == 1 and name in _LISTS
    return f"{', '.join(outputs)}{',' if many else ''} = {call}" if outputs else call


def _arguments(name: str, inputs: list[Any], attributes: list[Any], marks: dict[str, str]) -> list[str]:
    """As the schedule's method takes them, which is not always the order in which a trace has them."""
    words = [_value(value, marks) for value in inputs]
    match name:
        case "Split":
            more = ["preserve_unit_iters=False"] if not attributes[0] else []
            return [words[0], f"factors=[{', '.join(words[1:])}]", *more]
        case "Fuse":
            return words if attributes[0] else [*words, "preserve_unit_iters=False"]
        case "ComputeAt" | "ReverseComputeAt":
            more = [f"index={attributes[1]}"] if attributes[1] != -1 else []
            return [*words, f"preserve_unit_loops={bool(attributes[0])}", *more]
        case "Annotate":
            return [words[0], *map(_literal, attributes), *words[1:]]
    return words + [_literal(value) for value in attributes]


def _value(value: Any, marks: dict[str, str]) -> str:
    if isinstance(value, str):
        return marks.get(value, value)
    return _literal(value)


def _literal(value: Any) -> str:
    return repr(value) if isinstance(value, str | bool) or value is None else json.dumps(value)


def _snake(name: str) -> str:
    """`GetSBlock` -> `get_sblock`, as the methods of a schedule are called."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
