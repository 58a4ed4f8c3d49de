"""Other runtimes as contenders: the same model, in the same precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from slipstream.artifact.baselines import in_half_precision, torch_module
from slipstream.frontends import load_model, random_inputs, zoo
from slipstream.frontends.zoo import _bert

torch = pytest.importorskip("torch")


@pytest.fixture
def small_bert(monkeypatch: pytest.MonkeyPatch) -> onnx.ModelProto:
    """Two narrow layers of BERT; its attention mask is an integer that the graph casts to float32."""
    for name, value in {"_LAYERS": 2, "_WIDTH": 64, "_HEADS": 2, "_FEED": 128, "_VOCABULARY": 100}.items():
        monkeypatch.setattr(_bert, name, value)
    return zoo.build("bert_base")


@pytest.mark.parametrize(("name", "dtype"), [("bert", "float16"), ("tiny_cnn", "float16"), ("bert", "bfloat16")])
def test_a_model_in_half_precision_computes_nothing_in_float32(
    name: str, dtype: str, request: pytest.FixtureRequest
) -> None:
    proto = request.getfixturevalue("small_bert") if name == "bert" else zoo.build(name)
    model = load_model(proto)
    feeds = random_inputs(model.inputs, np.random.default_rng(0))
    module = torch_module(model.reference.clean_path)  # type: ignore[attr-defined]
    tensors = [torch.from_numpy(value) for value in feeds.values()]
    with torch.inference_mode():
        expected = module(*tensors)
        half, inputs = in_half_precision(module, tensors, dtype)
        seen = _Types()
        with seen:
            outputs = half(*inputs)
    assert torch.float32 not in seen.found
    for output, right in zip(outputs, expected, strict=True):
        assert output.dtype == getattr(torch, dtype)
        torch.testing.assert_close(output.float(), right, rtol=0.05, atol=0.05 * float(right.abs().max()))


class _Types(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Notes the types of all tensors that operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves(result)
        # Normalisations return their statistics in float32 beside the result.
        self.found.update(leaf.dtype for leaf in leaves[:1] if isinstance(leaf, torch.Tensor))
        return result
