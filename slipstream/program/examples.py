"""Which of many measured programs to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

One = TypeVar("One")


def examples_of(ranked: Sequence[One], count: int) -> list[One]:
    """Of programs ranked by speed, the fastest half of `count`, and others at equal distances down to the slowest."""
    if len(ranked) <= count:
        return list(ranked)
    fastest = count - count // 2
    others = ranked[fastest:]
    step = len(others) / max(1, count // 2)
    return [*ranked[:fastest], *(others[int((n + 1) * step) - 1] for n in range(count // 2))]
