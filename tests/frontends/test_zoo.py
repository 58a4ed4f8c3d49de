"""The zoo against published figures, ONNX's checker and ONNX Runtime."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from slipstream.errors import ModelError
from slipstream.frontends import zoo

# Parameters and billions of multiply-adds. torchvision's model pages give both ("GFLOPS" are multiply-adds).
# MobileNet v1: 4.2 and 569 million in table 8 of the paper, here with the exact parameters of 1000 classes.
# torchvision's figure for Inception includes the 3,326,696 parameters of the head that only training uses.
PUBLISHED = {
    "resnet18": (11_689_512, 1.814),
    "resnet50": (25_557_032, 4.089),
    "vgg16": (138_357_544, 15.470),
    "vgg19": (143_667_240, 19.632),
    "squeezenet1_1": (1_235_496, 0.349),
    "mobilenet_v1": (4_231_976, 0.569),
    "mobilenet_v2": (3_504_872, 0.301),
    "inception_v3": (27_161_264 - 3_326_696, 5.713),
    "efficientnet_b0": (5_288_548, 0.386),
}


@dataclass(frozen=True)
class Built:
    name: str
    model: onnx.ModelProto


# A second or more to build each, and longer to run.
LARGE = ("resnet50", "vgg16", "vgg19", "inception_v3", "bert_base")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in zoo.names()],
)
def built(request: pytest.FixtureRequest) -> Built:
    """Each model once; pytest runs all tests of one before it builds the next."""
    return Built(request.param, zoo.build(request.param))


def encoder_work(layers: int, length: int, width: int, feed: int) -> int:
    """Multiply-adds of transformer layers: four projections, scores and mixing, two feed-forward layers."""
    return layers * (4 * length * width**2 + 2 * length**2 * width + 2 * length * width * feed)


def test_parameters(built: Built) -> None:
    own = {"tiny_cnn": 2_698, "bert_base": 109_482_240, "transformer_encoder": 18_914_304}
    expected = own[built.name] if built.name in own else PUBLISHED[built.name][0]
    assert zoo.parameters(built.model) == expected


def test_multiply_adds(built: Built) -> None:
    counted = zoo.multiply_adds(built.model)
    match built.name:
        case "tiny_cnn":
            assert counted == 16 * 16 * (27 * 32 + 9 * 32 + 32 * 32) + 32 * 10
        case "bert_base":
            assert counted == encoder_work(12, 128, 768, 3072) + 768 * 768
        case "transformer_encoder":
            assert counted == encoder_work(6, 128, 512, 2048)
        case name:
            assert counted == pytest.approx(PUBLISHED[name][1] * 1e9, rel=0.003)


def test_is_valid_onnx_with_a_symbolic_batch(built: Built) -> None:
    onnx.checker.check_model(built.model)
    borders = (*built.model.graph.input, *built.model.graph.output)
    assert [v.type.tensor_type.shape.dim[0].dim_param for v in borders] == ["batch"] * len(borders)


def test_runs_with_sane_results(built: Built) -> None:
    if built.name == "vgg19":
        pytest.skip("vgg16 is made of the same layers")
    for result in run(built.model):
        assert result.shape[0] == 2
        assert np.isfinite(result).all()
        assert 0.1 < result.std() < 10
        assert np.abs(result).max() < 100
        # Neither the same for each class nor the same for each image.
        assert result[0].std() > 0.1
        assert (result[0] - result[1]).std() > 0.005 * result.std()


def test_names_need_no_onnx() -> None:
    code = "import sys; from slipstream.frontends import zoo; zoo.names(); sys.exit('onnx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_seed_decides_every_byte() -> None:
    first, same, other = (zoo.build("tiny_cnn", seed=seed).SerializeToString() for seed in (1, 1, 2))
    assert first == same
    assert first != other


def test_weights_are_the_same_on_every_platform() -> None:
    digest = hashlib.sha256()
    for tensor in zoo.build("tiny_cnn").graph.initializer:
        digest.update(tensor.raw_data)
    assert digest.hexdigest() == "fef8c5cdbce27d87c50ccd799720b64234263b4e660b9b7105d4cc1b6b0b3496"


def test_weights_are_spread_as_promised() -> None:
    graph = zoo.build("squeezenet1_1").graph
    weights = numpy_helper.to_array(next(t for t in graph.initializer if t.name == "Conv_25.weight"))
    assert weights.shape == (1000, 512, 1, 1)
    assert weights.std() == pytest.approx(math.sqrt(2 / 512), rel=0.01)
    assert abs(weights.mean()) < 0.01 * weights.std()
    assert len(np.unique(weights)) > 0.95 * weights.size


@pytest.mark.slow
def test_bert_ignores_masked_tokens() -> None:
    session = start(zoo.build("bert_base"))
    feeds = random_feeds(session, batch=1)
    feeds["attention_mask"] = (np.arange(128) < 100).astype(np.int64)[np.newaxis]
    changed = {**feeds, "input_ids": feeds["input_ids"].copy()}
    changed["input_ids"][:, 100:] = 7
    before, after = (session.run(["last_hidden_state"], f)[0] for f in (feeds, changed))
    np.testing.assert_allclose(before[:, :100], after[:, :100], atol=1e-4)
    assert np.abs(before[:, 100:] - after[:, 100:]).max() > 0.1


def test_transformer_computes_what_torch_does() -> None:
    torch = pytest.importorskip("torch")
    model = zoo.build("transformer_encoder")
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()
    weights = (torch.tensor(numpy_helper.to_array(t)) for t in model.graph.initializer)
    parts = ("self_attn.in_proj_", "self_attn.out_proj.", "norm1.", "linear1.", "linear2.", "norm2.")
    keys = [f"layers.{n}.{part}{kind}" for n in range(6) for part in parts for kind in ("weight", "bias")]
    encoder.load_state_dict({key: w.T if w.ndim == 2 else w for key, w in zip(keys, weights, strict=True)})
    session = start(model)
    feeds = random_feeds(session, batch=2)
    with torch.no_grad():
        expected = encoder(torch.tensor(feeds["src"])).numpy()
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "resnet19",
            "unknown zoo model 'resnet19': did you mean 'resnet18'? Available: tiny_cnn, resnet18, ",
        ),
        ("zzz", "unknown zoo model 'zzz'. Available: tiny_cnn, resnet18, "),
    ],
)
def test_unknown_names_are_answered_with_a_suggestion(name: str, message: str) -> None:
    with pytest.raises(ModelError) as error:
        zoo.build(name)
    assert str(error.value).startswith(message)


def test_work_without_shapes_is_an_error_not_a_guess() -> None:
    helper = onnx.helper
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)
    w = helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 4])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    with pytest.raises(ModelError, match="multiply-adds of MatMul 'product': the shape of 'x' is unknown"):
        zoo.multiply_adds(helper.make_model(helper.make_graph([node], "g", [x, w], [y])))


def run(model: onnx.ModelProto) -> list[NDArray[np.float32]]:
    session = start(model)
    return list(session.run(None, random_feeds(session, batch=2)))


def start(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def random_feeds(
    session: onnxruntime.InferenceSession, batch: int
) -> dict[str, NDArray[np.float32] | NDArray[np.int64]]:
    random = np.random.default_rng(0)
    feeds: dict[str, NDArray[np.float32] | NDArray[np.int64]] = {}
    for value in session.get_inputs():
        shape = (batch, *value.shape[1:])
        if value.type == "tensor(float)":
            feeds[value.name] = random.standard_normal(shape, dtype=np.float32)
        else:
            feeds[value.name] = random.integers(30522 if value.name == "input_ids" else 2, size=shape)
    return feeds
