"""Several shapes of a model in one expression: `1,4,16x3x224x224`, `1x32..128`, or a list of mappings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from slipstream.errors import ShapeError

MOST_VARIANTS = 16
"""Each variant is imported, tuned, built and verified."""

Shapes = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""By name of the input a text (`1,4x32..128`) or a list of dimensions, each a number, a text or a list of numbers; or
a list of such mappings, one for each variant."""

FixedShapes = dict[str, list[int]]


def shape_sets(shapes: Shapes | None) -> list[FixedShapes]:
    """The shapes of each variant; a single empty one if nothing is given.

    Dimensions with equal lists vary together, as one dimension of several inputs; different lists are combined.
    """
    if not shapes:
        return [{}]
    if isinstance(shapes, Mapping):
        sets = _combinations({name: _dimensions(name, shape) for name, shape in shapes.items()})
    else:
        sets = [_one_shape(mapping) for mapping in shapes]
        if any(set(one) != set(sets[0]) for one in sets):
            raise ShapeError("the mappings of a list of shapes name different inputs: name the same ones in each")
    distinct = [one for number, one in enumerate(sets) if one not in sets[:number]]
    if len(distinct) > MOST_VARIANTS:
        raise ShapeError(
            f"{len(distinct)} combinations of shapes are more than {MOST_VARIANTS}: give fewer values, or a range with "
            "a larger step (32..512:96)"
        )
    return distinct


def read_shape_options(texts: Sequence[str]) -> Shapes:
    """`["x=1,4x8", ...]` of the command line; an input that is named several times has one shape for each variant."""
    given: dict[str, list[str]] = {}
    for text in texts:
        name, equals, extents = text.rpartition("=")
        if not equals or not name:
            raise ShapeError(f"--shape {text!r} makes no sense: {_USAGE}")
        given.setdefault(name, []).append(extents)
    counts = {len(found) for found in given.values() if len(found) > 1}
    if not counts:
        return {name: found[0] for name, found in given.items()}
    if len(counts) > 1:
        raise ShapeError(
            f"--shape names inputs {' and '.join(map(str, sorted(counts)))} times: name each once, or all the others "
            "equally often"
        )
    return [{name: found[n if len(found) > 1 else 0] for name, found in given.items()} for n in range(counts.pop())]


def bucket_sizes(start: int, end: int, step: int | None = None) -> list[int]:
    """`start`, the powers of two (or the multiples of `step`) above it, and `end`."""
    if not 0 < start <= end or (step is not None and step <= 0):
        raise ShapeError(f"the range {start}..{end} makes no sense: it goes from a number above zero to a larger one")
    if step is None:
        between = [1 << power for power in range(start.bit_length(), end.bit_length())]
    else:
        between = list(range((start // step + 1) * step, end, step))
    return sorted({start, end, *(size for size in between if start < size < end)})


_USAGE = "write it as NAME=1x3x224x224, with lists (1,4,16) or ranges (1..128, 32..512:32) of numbers above zero"


def _combinations(dimensions: Mapping[str, Sequence[Sequence[int]]]) -> list[FixedShapes]:
    lists = list(dict.fromkeys(tuple(sizes) for shape in dimensions.values() for sizes in shape if len(sizes) > 1))
    found = []
    for values in product(*lists):
        chosen = dict(zip(lists, values, strict=True))
        found.append({n: [chosen.get(tuple(sizes), sizes[0]) for sizes in shape] for n, shape in dimensions.items()})
    return found


def _one_shape(mapping: Mapping[str, Any]) -> FixedShapes:
    found = {name: _dimensions(name, shape) for name, shape in mapping.items()}
    for name, shape in found.items():
        if any(len(sizes) > 1 for sizes in shape):
            raise ShapeError(f"input {name!r} has several shapes in one of several variants: give it one in each")
    return {name: [sizes[0] for sizes in shape] for name, shape in found.items()}


def _dimensions(name: str, shape: Any) -> list[list[int]]:
    """The sizes of each dimension of an input."""
    if isinstance(shape, str):
        shape = shape.lower().split("x") if shape else []
    try:
        return [_sizes(dimension) for dimension in shape]
    except (ValueError, TypeError):
        shown = "x".join(map(str, shape)) if isinstance(shape, Sequence) else repr(shape)
        raise ShapeError(f"--shape {f'{name}={shown}'!r} makes no sense: {_USAGE}") from None


def _sizes(dimension: Any) -> list[int]:
    if isinstance(dimension, str):
        found = [size for part in dimension.split(",") for size in _range(part.strip())]
    else:
        found = [int(size) for size in dimension] if isinstance(dimension, Sequence) else [int(dimension)]
    if not found or min(found) < (0 if len(found) == 1 else 1):
        raise ValueError(dimension)
    return list(dict.fromkeys(found))


def _range(text: str) -> list[int]:
    """`8`, `1..128` or `32..512:32`."""
    first, dots, rest = text.partition("..")
    last, colon, step = rest.partition(":")
    for word in (first, *([last] if dots else []), *([step] if colon else [])):
        if not word.isdecimal():
            raise ValueError(text)
    return bucket_sizes(int(first), int(last), int(step) if colon else None) if dots else [int(first)]
