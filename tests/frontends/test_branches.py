"""If nodes whose branch follows from shapes and constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from slipstream.frontends.onnx_branches import choose_branches, deciding_inputs

FLOAT = TensorProto.FLOAT


def graph(text: str, *, initializers: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]>\n' + text)
    for name, value in (initializers or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def chosen(model: onnx.ModelProto, shape: list[int], tmp_path: Path) -> list[str]:
    inputs = [helper.make_tensor_value_info("x", FLOAT, shape)]
    choose_branches(model, inputs, tmp_path)
    onnx.checker.check_model(model)
    return [node.op_type for node in model.graph.node]


NESTED = """
main (float[N, M] x) => (float[A, B] y) {
  shape = Shape(x)
  one = Constant<value_int = 1>()
  size = Gather(shape, one)
  four = Constant<value_int = 4>()
  wide = Equal(size, four)
  y = If (wide) <
    then_branch = then_graph () => (float[A, B] r) {
      two = Constant<value_int = 2>()
      again = Equal(size, two)
      r = If (again) <
        then_branch = inner_then () => (float[A, B] r1) { r1 = Sin(x) },
        else_branch = inner_else () => (float[A, B] r2) { two = Exp(x)  r2 = Add(two, x) }
      >
    },
    else_branch = else_graph () => (float[A, B] s) { s = MatMul(x, weight) }
  >
}
"""


def test_nested_branches_by_size(tmp_path: Path) -> None:
    weight = {"weight": np.ones((7, 3), np.float32)}
    nodes = chosen(graph(NESTED, initializers=weight), [2, 4], tmp_path)
    assert "If" not in nodes
    assert {"Exp", "Add"} <= set(nodes)
    assert not {"Sin", "MatMul"} & set(nodes)
    assert "MatMul" in chosen(graph(NESTED, initializers=weight), [2, 7], tmp_path)


def test_names_of_a_branch_do_not_meet_others(tmp_path: Path) -> None:
    import onnxruntime

    model = graph(NESTED, initializers={"weight": np.ones((7, 3), np.float32)})
    chosen(model, [2, 4], tmp_path)
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, np.exp(x) + x, rtol=1e-6)


def test_a_branch_that_depends_on_values_stays(tmp_path: Path) -> None:
    model = graph(
        """
main (float[N, M] x) => (float[A, B] y) {
  sum = ReduceSum<keepdims = 0>(x)
  zero = Constant<value_float = 0.0>()
  positive = Greater(sum, zero)
  y = If (positive) <
    then_branch = then_graph () => (float[A, B] r) { r = Sin(x) },
    else_branch = else_graph () => (float[A, B] s) { s = Cos(x) }
  >
}
"""
    )
    assert "If" in chosen(model, [2, 4], tmp_path)
    assert deciding_inputs(model.graph) == ["x"]


@pytest.mark.parametrize(
    "found",
    [
        "found = NonZero(x)",
        "count = ReduceSum<keepdims = 0>(x) last = Cast<to = 7>(count)"
        " ends = Unsqueeze(last, one0) starts = Constant<value_ints = [0]>() found = Slice(x, starts, ends)",
    ],
)
def test_a_branch_that_depends_on_how_much_is_found_stays(found: str, tmp_path: Path) -> None:
    """The size of what an operator finds depends on values, though it is a size."""
    body = """
main (float[N, M] x) => (float[A, B] y) {{
  one0 = Constant<value_ints = [0]>()
  {found}
  size = Size(found)
  none = Constant<value_int = 0>()
  any = Greater(size, none)
  y = If (any) <
    then_branch = then_graph () => (float[A, B] r) {{ r = Sin(x) }},
    else_branch = else_graph () => (float[A, B] s) {{ s = Cos(x) }}
  >
}}
"""
    model = graph(body.format(found=found))
    assert "If" in chosen(model, [2, 4], tmp_path)
    assert deciding_inputs(model.graph) == ["x"]


def test_a_branch_by_the_size_of_something_reshaped_by_a_shape_is_chosen(tmp_path: Path) -> None:
    model = graph(
        """
main (float[N, M] x) => (float[A, B] y) {
  shape = Shape(x)
  same = Reshape(x, shape)
  size = Size(same)
  eight = Constant<value_int = 8>()
  right = Equal(size, eight)
  y = If (right) <
    then_branch = then_graph () => (float[A, B] r) { r = Sin(x) },
    else_branch = else_graph () => (float[A, B] s) { s = Cos(x) }
  >
}
"""
    )
    nodes = chosen(model, [2, 4], tmp_path)
    assert "If" not in nodes
    assert "Sin" in nodes
