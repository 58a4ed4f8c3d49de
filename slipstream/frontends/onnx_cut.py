"""Cutting an ONNX graph into regions that are compiled and regions that are not, as few as possible."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import onnx

from slipstream.frontends.onnx_values import ValueType, names_read

# Another compiled region costs a call from Python, some 40 µs: with fewer arithmetic operations than this, being
# compiled saves less.
_FEWEST_OPERATIONS = 1_000_000
# Operators that move, name or count elements: a region of nothing else is not compiled, whatever its size.
_MOVES = frozenset(
    {
        *("Cast", "CastLike", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "GatherElements"),
        *("GatherND", "Identity", "Pad", "Range", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze", "Tile"),
        *("Transpose", "Unsqueeze"),
    }
)
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


@dataclass(frozen=True)
class Region:
    """Nodes, by their positions in the graph, that run together."""

    compiled: bool
    nodes: tuple[int, ...]


def cut(graph: onnx.GraphProto, refused: Collection[int], types: Mapping[str, ValueType]) -> list[Region]:
    """Regions in the order in which they run; the nodes `refused` and those of other than static values are not
    compiled, nor is a region of too little work beside them. Without any compiled region, the result is one region.
    """
    reads = [names_read(node) for node in graph.node]
    producer = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    sources = [sorted({producer[name] for name in names if name in producer}) for names in reads]
    weights = {tensor.name for tensor in graph.initializer}
    values = [{*names, *filter(None, node.output)} - weights for names, node in zip(reads, graph.node, strict=True)]
    left = set(refused)
    left |= {index for index, names in enumerate(values) if not all(_is_static(name, types) for name in names)}
    while True:
        regions = _regions(sources, left)
        work = {region: _work(graph, region, types) for region in regions if region.compiled}
        small = [region for region in work if work[region] < _FEWEST_OPERATIONS]
        if len(small) == len(work):
            # All are small: the largest stays, if it computes anything.
            small.sort(key=lambda region: work[region])
            small = small[:-1] if small and work[small[-1]] > 0 else small
        if not small:
            return regions
        left.update(min(small, key=lambda region: work[region]).nodes)


def _is_static(name: str, types: Mapping[str, ValueType]) -> bool:
    return name in types and types[name].is_static


def _regions(sources: Sequence[Sequence[int]], left: Collection[int]) -> list[Region]:
    """A node's level counts how often a way to it changes between the two kinds; the nodes of a level run together.

    The longest such way cannot be run in fewer regions. Which kind begins makes a difference of one.
    """
    return min((_levels(sources, left, begin) for begin in (True, False)), key=len)


def _levels(sources: Sequence[Sequence[int]], left: Collection[int], begin: bool) -> list[Region]:
    levels: list[int] = []
    for index, before in enumerate(sources):
        compiled = index not in left
        level = int(compiled != begin)
        for source in before:
            level = max(level, levels[source] + int((source not in left) != compiled))
        levels.append(level)
    return [
        Region(begin == (level % 2 == 0), tuple(index for index, own in enumerate(levels) if own == level))
        for level in sorted(set(levels))
    ]


def _work(graph: onnx.GraphProto, region: Region, types: Mapping[str, ValueType]) -> int:
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    return sum(_operations(graph.node[index], types, weights) for index in region.nodes)


def _operations(node: onnx.NodeProto, types: Mapping[str, ValueType], weights: Mapping[str, tuple[int, ...]]) -> int:
    """About how many operations the node takes; none if it only moves elements."""
    if node.op_type in _MOVES:
        return 0

    def shape(name: str) -> tuple[int, ...]:
        return weights.get(name) or (types[name].shape if name in types else None) or ()

    results = sum(prod(shape(name)) for name in node.output)
    if node.op_type not in _PRODUCTS:
        return max(results, *(prod(shape(name)) for name in node.input), 1)
    factor = shape(node.input[1])
    if node.op_type in ("MatMul", "Gemm"):
        return 2 * results * (shape(node.input[0])[-1:] or (1,))[0]
    return 2 * results * prod(factor[1:])
