"""What two sketches must share for the decisions of one to mean something to the other.

Sketches differ in much that no decision touches: an epilogue more, a padding less. The signature keeps the sampling
instructions and whatever follows from sampled values, and leaves out the rest.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from slipstream.program.sketch import Instruction, Sketch


@lru_cache(maxsize=4096)
def signature(sketch: Sketch) -> str:
    """Equal for sketches between which decisions can be carried over, position by position."""
    sampled: set[str] = set()
    kept: list[object] = [sketch.form] if sketch.form else []
    for instruction in sketch.instructions:
        if instruction[0].startswith("Sample") or any(_depends(instruction, sampled)):
            sampled.update(out for out in instruction[3] if not out.startswith("b"))
            kept.append(_shape(instruction))
    return hashlib.blake2b(json.dumps(kept).encode(), digest_size=8).hexdigest()


def _depends(instruction: Instruction, sampled: set[str]) -> list[bool]:
    return [isinstance(value, str) and value in sampled for value in instruction[1]]


def _shape(instruction: Instruction) -> list[object]:
    """The instruction without the names of its variables."""
    name, inputs, attributes, outputs = instruction
    return [name, len(inputs), attributes, len(outputs)]
