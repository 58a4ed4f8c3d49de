"""`benchmarks.short_errors`: a quantised model, operator by operator, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import short_errors, short_types
from benchmarks.rivals.models import model_files

Files = tuple[onnx.ModelProto, dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder: Path = tmp_path_factory.mktemp("quantised")
    files = model_files("tiny_cnn", folder / "files")
    with np.load(files["feeds"]) as feeds:
        return onnx.load(str(short_types.quantised(files, folder / "int8.onnx"))), dict(feeds)


def test_each_operator_is_a_level_at_most_from_onnx_runtimes(quantised: Files) -> None:
    found = short_errors.errors(*quantised, {})
    assert len(found["tensors"]) == 4
    assert max(most for _, _, _, most in found["tensors"]) <= 1
    assert sum(row[2] for row in found["tensors"]) <= 1e-3 * sum(row[1] for row in found["tensors"])
    assert max(found["outputs"].values()) < 0.01
    page = short_errors.markdown({"tiny_cnn": {"tuned": False, **found}})
    row = next(line for line in page.splitlines() if line.startswith("| tiny_cnn | default | 4 | 19488 |"))
    assert row.endswith(f"| {found['inherent']:.1e} |")


def test_one_wrong_scale_is_seen_where_it_is(quantised: Files) -> None:
    """Only in what is computed from it: everything before is computed from ONNX Runtime's values."""
    proto, feeds = quantised
    names = short_errors.tensors_of_products(proto.graph)
    values = short_errors.reference_values(proto, names, feeds)
    wrong = short_errors.cut_at(proto, values)
    readers = [node for node in wrong.graph.node if node.input[0] == f"{names[1]}_given"]
    (scale,) = (tensor for tensor in wrong.graph.initializer if tensor.name == readers[0].input[1])
    changed = onnx.numpy_helper.from_array(np.float32(1.05) * onnx.numpy_helper.to_array(scale), "changed")
    wrong.graph.initializer.append(changed)
    for node in readers:
        node.input[1] = "changed"
    found = short_errors.our_values(wrong, {**feeds, **{f"{name}_given": values[name] for name in names}}, {})
    differ = {name: float((found[name] != values[name]).mean()) for name in names}
    assert differ[names[2]] > 0.01
    assert max(differ[names[0]], differ[names[1]]) < 1e-3
