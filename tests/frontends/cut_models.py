"""Small models that cannot be compiled as a whole, and one whose inputs depend on each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
IMAGE = {"x": (T.FLOAT, [1, 3, 32, 32])}
_ML = "ai.onnx.ml"


def weight(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, int],
    weights: Mapping[str, Array],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "cut",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(_ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def body(output: str = "features", channels: int = 8) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    nodes = [node("Conv", "x w0", "c0", pads=[1, 1, 1, 1], name="first"), node("Relu", "c0", output)]
    return nodes, {"w0": weight(channels, 3, 3, 3)}


def detector() -> onnx.ModelProto:
    """Boxes and scores from convolutions; which of them overlap decides how many are returned."""
    nodes, weights = body()
    nodes += [
        node("Conv", "features w1", "corners"),
        node("Reshape", "corners box_shape", "boxes"),
        node("Conv", "features w2", "raw"),
        node("Sigmoid", "raw", "probabilities"),
        node("Reshape", "probabilities score_shape", "scores"),
        node("NonMaxSuppression", "boxes scores most overlap least", "selected", name="nms"),
        node("Gather", "selected last", "places", axis=1),
        node("Squeeze", "places one", "indices"),
        node("Gather", "boxes indices", "found", axis=1),
    ]
    weights |= {
        "w1": weight(4, 8, 1, 1, seed=1),
        "w2": weight(2, 8, 1, 1, seed=2),
        "box_shape": np.array([1, -1, 4]),
        "score_shape": np.array([1, 2, -1]),
        "most": np.array([500]),
        "overlap": np.array([0.5], np.float32),
        "least": np.array([0.2], np.float32),
        "last": np.array([2]),
        "one": np.array([1]),
    }
    return model(nodes, IMAGE, {"found": T.FLOAT, "scores": T.FLOAT}, weights)


def nonzero() -> onnx.ModelProto:
    nodes, weights = body()
    nodes += [
        node("Greater", "features threshold", "above"),
        node("NonZero", "above", "places"),
        node("Transpose", "places", "rows"),
        node("GatherND", "features rows", "values"),
    ]
    return model(nodes, IMAGE, {"values": T.FLOAT}, weights | {"threshold": np.array(1.0, np.float32)})


def top_k() -> onnx.ModelProto:
    """As many of the largest values as there are values above one."""
    nodes, weights = body()
    nodes += [
        node("Reshape", "features flat", "row"),
        node("Greater", "row threshold", "above"),
        node("Cast", "above", "ones", to=T.INT64),
        node("ReduceSum", "ones", "count", keepdims=0),
        node("Reshape", "count flat", "k"),
        node("TopK", "row k", "largest places", name="top"),
    ]
    constants = {"flat": np.array([-1]), "threshold": np.array(1.0, np.float32)}
    return model(nodes, IMAGE, {"largest": T.FLOAT, "places": T.INT64}, weights | constants)


def tree(name: str, inputs: str, outputs: str, features: int) -> onnx.NodeProto:
    """A forest of one tree that sums half or a quarter for each of its outputs."""
    return helper.make_node(
        "TreeEnsembleRegressor",
        inputs.split(),
        outputs.split(),
        domain=_ML,
        name=name,
        n_targets=features,
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[1, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.1, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        nodes_missing_value_tracks_true=[0, 0, 0],
        nodes_hitrates=[1.0, 1.0, 1.0],
        target_treeids=[0] * 2 * features,
        target_nodeids=[1] * features + [2] * features,
        target_ids=[*range(features)] * 2,
        target_weights=[0.5] * features + [-0.25] * features,
    )


def tree_between_matmuls() -> onnx.ModelProto:
    """A scaler, a matmul, a tree, a matmul, a last addition: ONNX Runtime, compiled, ONNX Runtime, compiled."""
    scaler = helper.make_node("Scaler", ["x"], ["scaled"], domain=_ML, name="scaler", offset=[0.5], scale=[2.0])
    nodes = [
        scaler,
        node("MatMul", "scaled w1", "hidden"),
        node("Relu", "hidden", "positive"),
        tree("forest", "positive", "leaves", 64),
        node("MatMul", "leaves w2", "product"),
        node("Add", "product bias", "y"),
    ]
    weights = {"w1": weight(64, 64), "w2": weight(64, 64, seed=1), "bias": weight(64, seed=2)}
    return model(nodes, {"x": (T.FLOAT, [256, 64])}, {"y": T.FLOAT}, weights)


def tree_after_matmul() -> onnx.ModelProto:
    """What follows the tree is static but too little to be worth a part of its own."""
    nodes = [
        node("MatMul", "x w1", "hidden"),
        node("Relu", "hidden", "positive"),
        tree("forest", "positive", "leaves", 2),
        node("Add", "leaves bias", "sum"),
        node("Softmax", "sum", "y"),
    ]
    return model(nodes, {"x": (T.FLOAT, [4, 64])}, {"y": T.FLOAT}, {"w1": weight(64, 64), "bias": weight(2)})


def labels() -> onnx.ModelProto:
    """Text, and a sequence of tensors, as outputs; a constant and the input as well."""
    encoder = helper.make_node(
        "LabelEncoder", ["class"], ["label"], domain=_ML, keys_int64s=[0, 1], values_strings=["cat", "dog"]
    )
    nodes, weights = body()
    nodes += [
        node("GlobalAveragePool", "features", "pooled"),
        node("Flatten", "pooled", "row"),
        node("MatMul", "row w1", "scores"),
        node("ArgMax", "scores", "class", axis=1, keepdims=0),
        encoder,
        node("SplitToSequence", "scores", "each", axis=1),
    ]
    weights |= {"w1": weight(8, 2), "version": np.array([3])}
    made = model(nodes, IMAGE, {"label": T.STRING, "version": T.INT64, "x": T.FLOAT}, weights)
    made.graph.output.append(helper.make_tensor_sequence_value_info("each", T.FLOAT, None))
    return made


def axis_as_input() -> onnx.ModelProto:
    """TVM's importer has the operator but fails on this use of it: the axis to sum along is an input."""
    nodes, weights = body(channels=32)
    nodes += [node("CumSum", "features axis", "sums", name="add_up"), node("Conv", "sums w1", "y")]
    weights |= {"w1": weight(64, 32, 3, 3, seed=1)}
    return model(nodes, {**IMAGE, "axis": (T.INT64, [1])}, {"y": T.FLOAT}, weights)


def smaller_indices() -> onnx.ModelProto:
    """Some places of the innermost axis have no index, which TVM's operator would count on from."""
    nodes, weights = body()
    nodes.append(node("ScatterElements", "features places new", "y", axis=1, name="scatter"))
    weights |= {"places": np.arange(2 * 16 * 16).reshape(1, 2, 16, 16) % 5, "new": weight(1, 2, 16, 16)}
    return model(nodes, IMAGE, {"y": T.FLOAT}, weights)


def graph_network() -> onnx.ModelProto:
    """Messages along edges whose ends have to be nodes, numbered from 5 on: 0 and 1 make ONNX Runtime fail."""
    nodes = [
        node("Sub", "edges five", "places"),
        node("Gather", "places zero", "source"),
        node("Gather", "places unit", "destination"),
        node("MatMul", "x w1", "hidden"),
        node("Gather", "hidden source", "messages"),
        node("Unsqueeze", "destination unit_axis", "column"),
        node("Expand", "column message_shape", "rows"),
        node("Sub", "hidden hidden", "zeros"),
        node("ScatterElements", "zeros rows messages", "sums", axis=0, reduction="add"),
        node("Relu", "sums", "y"),
    ]
    weights = {
        "five": np.array(5),
        "zero": np.array(0),
        "unit": np.array(1),
        "w1": weight(16, 16),
        "unit_axis": np.array([1]),
        "message_shape": np.array([12, 16]),
    }
    return model(nodes, {"x": (T.FLOAT, [4, 16]), "edges": (T.INT64, [2, 12])}, {"y": T.FLOAT}, weights)


def graph_inputs() -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {"x": rng.standard_normal((4, 16)).astype(np.float32), "edges": rng.integers(5, 9, (2, 12))}


def only_trees() -> onnx.ModelProto:
    return model([tree("forest", "x", "y", 2)], {"x": (T.FLOAT, [4, 3])}, {"y": T.FLOAT}, {})
