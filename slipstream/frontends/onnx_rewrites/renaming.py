"""New names for what a copied node reads and writes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Give inputs and outputs of a node, and what graphs inside it take from outside, their new names."""
    for field in (node.input, node.output):
        renamed = [names.get(name, name) for name in field]
        del field[:]
        field.extend(renamed)
    for attribute in node.attribute:
        for inner in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
            own = {value.name for value in [*inner.input, *inner.initializer]}
            own |= {output for each in inner.node for output in each.output}
            outer = {old: new for old, new in names.items() if old not in own}
            for each in inner.node:
                rename(each, outer)
            for output in inner.output:
                output.name = outer.get(output.name, output.name)
