"""Chosen programs applied to the functions of a prepared module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slipstream.graph.describe.key import operator_key
from slipstream.graph.forms import schedule_untuned
from slipstream.machine.target import Target
from slipstream.program.space import Program, Space


def scheduled_as(func: Any, program: Program, target: Target) -> Any | None:
    """`func` with the program's schedule; None if that is not legal for it."""
    realized = Space(program.operator, func, target).realize(program)
    if realized is None:
        return None
    result = realized.module["main"].without_attr("global_symbol")
    symbol = func.attrs.get("global_symbol") if func.attrs else None
    return result.with_attr("global_symbol", symbol) if symbol else result


def schedule_with(winners: Mapping[str, Program], target: Target) -> Callable[[Any], Any]:
    """What gives each function of a prepared module its winner's schedule; its default one if it has none."""

    def scheduled(func: Any) -> Any:
        program = winners.get(operator_key(func))
        result = scheduled_as(func, program, target) if program is not None else None
        return schedule_untuned(func, target) if result is None else result

    return scheduled
