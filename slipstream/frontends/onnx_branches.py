"""Replacing If by the branch that is taken, where that follows from shapes and constants alone.

Exporters leave such nodes behind for ranks and sizes that were dynamic, nested in each other. ONNX Runtime folds some
of them, and refuses or crashes on others once shapes are fixed, because it infers types of branches that are never
taken.
Runs inside `onnx_worker`, without TVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from slipstream.errors import ModelError
from slipstream.frontends import onnx_run
from slipstream.frontends.onnx_files import save
from slipstream.frontends.onnx_rewrites.renaming import rename
from slipstream.frontends.onnx_values import drop_unused, names_of_sizes, names_read

# Their results depend on the shapes of what they read; on its values only where the shapes do.
_OF_SHAPES = {"Shape", "Size"}
_VALUES, _SHAPE = "values", "shape"


def choose_branches(proto: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto], directory: Path) -> bool:
    """Replace every If that has the same branch for all `inputs` of these shapes; whether there was one.

    The conditions are computed by ONNX Runtime in the model as it is, whose shapes are still dynamic.
    """
    chosen = False
    while nodes := [node for node in proto.graph.node if node.op_type == "If" and not _inputs_of(proto.graph, node)]:
        try:
            taken = _conditions(proto, [node.input[0] for node in nodes], inputs, directory / "conditions.onnx")
        except ModelError:
            break  # the whole model is given to ONNX Runtime as it is, which then says what is wrong with it
        for node in nodes:
            _inline(proto.graph, node, "then_branch" if taken[node.input[0]] else "else_branch")
        chosen = True
    return chosen


def deciding_inputs(graph: onnx.GraphProto) -> list[str]:
    """The inputs on whose values it depends which branch is taken."""
    return sorted({name for node in graph.node if node.op_type == "If" for name in _inputs_of(graph, node)})


def _inputs_of(graph: onnx.GraphProto, node: onnx.NodeProto) -> set[str]:
    """The inputs on whose values the node's condition depends; that on their shapes is none, since these are fixed."""
    makers = {output: maker for maker in graph.node for output in maker.output}
    given = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    pending, seen = [(node.input[0], _VALUES)], set()
    while pending:
        name, what = pending.pop()
        if (name, what) in seen:
            continue
        seen.add((name, what))
        if (maker := makers.get(name)) is None:
            continue
        sized_by = names_of_sizes(maker) if what == _SHAPE else []
        of_shapes = what == _SHAPE or maker.op_type in _OF_SHAPES
        pending += [(read, _VALUES) for read in sized_by]
        pending += [(read, _SHAPE if of_shapes else _VALUES) for read in names_read(maker)]
    return {name for name, what in seen if what == _VALUES} & given


def _conditions(
    proto: onnx.ModelProto, names: Sequence[str], inputs: Sequence[onnx.ValueInfoProto], path: Path
) -> Mapping[str, bool]:
    """What these tensors are, computed by what they depend on."""
    part = onnx.ModelProto()
    part.CopyFrom(proto)
    del part.graph.output[:]
    distinct = list(dict.fromkeys(names))
    part.graph.output.extend(onnx.helper.make_tensor_value_info(n, onnx.TensorProto.BOOL, None) for n in distinct)
    drop_unused(part.graph)
    save(part, path)
    rng = np.random.default_rng(0)
    feeds = {}
    for value in inputs:
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[value.name] = rng.random(shape).astype(dtype)
    found = onnx_run.run(onnx_run.session(path, optimise=False), feeds)
    return {name: bool(np.asarray(value).reshape(())) for name, value in zip(distinct, found, strict=True)}


def _inline(graph: onnx.GraphProto, node: onnx.NodeProto, branch: str) -> None:
    """Put the nodes of the branch where the If is, under names of their own."""
    (body,) = [attribute.g for attribute in node.attribute if attribute.name == branch]
    prefix = f"slipstream.{node.output[0]}."
    own = [output for inner in body.node for output in inner.output if output]
    names = {name: prefix + name for name in [*own, *(tensor.name for tensor in body.initializer)]}
    place = list(graph.node).index(node)
    copies = []
    for inner in body.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        rename(copy, names)
        copies.append(copy)
    for tensor in body.initializer:
        tensor.name = names[tensor.name]
        graph.initializer.append(tensor)
    for result, output in zip(body.output, node.output, strict=True):
        copies.append(onnx.helper.make_node("Identity", [names.get(result.name, result.name)], [output]))
    rest = list(graph.node)[place + 1 :]
    del graph.node[place:]
    graph.node.extend([*copies, *rest])
