"""ONNX nodes that TVM cannot import, rewritten as standard nodes that it can.

The rewritten model is still an ONNX model: ONNX Runtime folds and checks it as any other, and layout conversion,
fusion and tuning see the same operators as everywhere else. `REWRITES` has a small function for each operator.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from slipstream.errors import UnsupportedModelError
from slipstream.frontends.onnx_rewrites import (
    attention,
    bodies,
    fused,
    indexing,
    lacking,
    loops,
    normalisation,
    quantised,
    recurrent,
    signal,
)
from slipstream.frontends.onnx_rewrites.builder import Builder, Rewrite
from slipstream.frontends.onnx_values import names_read

__all__ = ["REWRITES", "rewrite", "rewrite_for_onnx_runtime"]

REWRITES: dict[tuple[str, str], Rewrite] = {
    **attention.REWRITES,
    **bodies.REWRITES,
    **fused.REWRITES,
    **indexing.REWRITES,
    **lacking.REWRITES,
    **loops.REWRITES,
    **normalisation.REWRITES,
    **quantised.REWRITES,
    **signal.REWRITES,
}


# What ONNX Runtime itself may lack, without which a model has no reference.
_FOR_ONNX_RUNTIME: dict[tuple[str, str], Rewrite] = {
    **bodies.REWRITES,
    **lacking.FOR_ONNX_RUNTIME,
    **recurrent.REWRITES,
}


def rewrite(model: onnx.ModelProto, directory: Path, refused: dict[str, str]) -> bool:
    """Replace every node that `REWRITES` has; whether there was one. Weights in files are in `directory`.

    A node that cannot be replaced stays, and `refused` has the reason under the name of its first output. Only nodes
    of the main graph are replaced.
    """
    return _apply(REWRITES, model, directory, refused)


def rewrite_for_onnx_runtime(model: onnx.ModelProto, directory: Path) -> bool:
    """The same for a model that ONNX Runtime refuses."""
    changed = False
    while _apply(_FOR_ONNX_RUNTIME, model, directory, {}):
        changed = True
    return changed


def _apply(
    table: dict[tuple[str, str], Rewrite], model: onnx.ModelProto, directory: Path, refused: dict[str, str]
) -> bool:
    builder = Builder(model, directory)
    changed = False
    nodes: list[onnx.NodeProto] = []
    needed = {value.name for value in model.graph.output}
    needed.update(name for node in model.graph.node for name in names_read(node))
    for node in model.graph.node:
        function = table.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))
        results, constants = None, len(model.graph.initializer)
        if function is not None:
            try:
                results = function(builder, node)
            except UnsupportedModelError as error:
                refused[node.output[0]] = str(error)
        lacking = [] if results is None else [name for name in node.output[len(results) :] if name in needed]
        if lacking:
            refused[node.output[0]] = f"what replaces {node.op_type} lacks its output {lacking[0]!r}"
            results = None
        if results is None:
            made = [node]
            del model.graph.initializer[constants:]
        else:
            changed = True
            refused.pop(node.output[0], None)
            named = zip(results, node.output, strict=False)
            made = [*builder.nodes, *(onnx.helper.make_node("Identity", [a], [b]) for a, b in named if b)]
        builder.nodes.clear()
        builder.before += made
        nodes += made
    if changed:
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    return changed
