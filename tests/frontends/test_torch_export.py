"""PyTorch in: a module, an exported program, a saved one; PyTorch itself is the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slipstream
from slipstream.errors import ModelError, UnsupportedModelError
from slipstream.frontends import load_model

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    """Convolution with batch norm, embedding, attention, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.embedding = torch.nn.Embedding(13, 8)
        self.attention = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
        torch.nn.init.normal_(self.norm.running_mean)
        torch.nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, image, tokens):
        features = torch.nn.functional.silu(self.norm(self.conv(image)))
        return features, self.attention(self.embedding(tokens) + features.mean((2, 3))[:, None])


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def example() -> tuple:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, 3, 8, 8, generator=generator), torch.randint(0, 13, (1, 5), generator=generator)


def check_against_torch(directory: Path, net: Net, example: tuple) -> None:
    with torch.no_grad():
        expected = net.eval()(*example)
    actual = slipstream.load(directory)(*example)
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(torch.from_dlpack(mine).numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def program(net: Net, example: tuple) -> torch.export.ExportedProgram:
    return torch.export.export(net.eval(), example)


@pytest.fixture(scope="module")
def from_file(
    program: torch.export.ExportedProgram, tmp_path_factory: pytest.TempPathFactory
) -> slipstream.CompileResult:
    """The saved program, compiled once for this file of tests."""
    folder = tmp_path_factory.mktemp("export")
    torch.export.save(program, folder / "net.pt2")
    return slipstream.compile(folder / "net.pt2", folder / "out")


def test_a_module_is_compiled_as_it_is(net: Net, example: tuple, tmp_path: Path) -> None:
    net.train()
    result = slipstream.compile(net, tmp_path / "module", example_inputs=example)
    assert net.training, "compiling must not change the user's module"
    assert result.verification is not None
    assert result.verification.reference == "torch"
    check_against_torch(result.directory, net, example)


def test_a_saved_program_is_the_exported_one(
    net: Net, example: tuple, program: torch.export.ExportedProgram, from_file: slipstream.CompileResult
) -> None:
    check_against_torch(from_file.directory, net, example)
    assert slipstream.load_model(program).fingerprint == from_file.manifest.fingerprint
    assert [spec.limit for spec in from_file.manifest.inputs] == [None, 13]


def test_bench_of_a_saved_program_against_torch(from_file: slipstream.CompileResult) -> None:
    from slipstream.artifact.bench import bench

    result = bench(from_file.directory, against=["torch"], seconds=0.5)
    for part in result.parts:
        assert [timing.name for timing in part.timings] == ["slipstream", "torch"]


def test_batch_norm_disappears_into_the_convolution(net: Net, example: tuple) -> None:
    from slipstream.graph.operators import extract_operators
    from slipstream.graph.prepare import prepare
    from slipstream.machine.target import resolve_target

    model = slipstream.load_model(torch.export.export(net.eval(), example))
    prepared, _ = prepare(model.module, resolve_target())
    names = [operator.name for operator in extract_operators(prepared)]
    assert "conv2d 3x3 3→8 8x8 + add + silu" in names


class Masks(torch.nn.Module):
    """What is done with booleans."""

    def forward(self, a, b, x):
        chosen = (a == b) != (a < b)
        kept = (chosen * (a >= b)) + torch.maximum(a, ~b)
        return x.masked_fill(chosen, 0.0), kept, a == True, torch.minimum(a, b), (a <= b) & (a > b)  # noqa: E712


def test_booleans(tmp_path: Path) -> None:
    a, b = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])
    slipstream.compile(Masks(), tmp_path / "masks", example_inputs=(a, b, torch.arange(4.0)))
    for actual, expected in zip(
        slipstream.load(tmp_path / "masks")(a, b, torch.arange(4.0)), Masks()(a, b, torch.arange(4.0)), strict=True
    ):
        np.testing.assert_array_equal(torch.from_dlpack(actual).numpy(), expected.numpy())


class Picks(torch.nn.Module):
    """Reads rows and columns, writes single elements, at places that may count from the end."""

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        written = x.clone()
        written[i, i] = 7.0
        return x[i], x[:, i], x[:, [-1, 0]], written


def test_indices_from_the_end(tmp_path: Path) -> None:
    x = torch.arange(20.0).reshape(4, 5)
    artifact = slipstream.compile(Picks(), tmp_path / "out", example_inputs=(x, torch.tensor([0, 1])))
    with slipstream.load(artifact.directory) as model:
        for places in ([3, 2], [-1, -2], [-4, 0]):
            i = torch.tensor(places)
            for ours, theirs in zip(model(x, i), Picks()(x, i), strict=True):
                np.testing.assert_array_equal(torch.from_dlpack(ours), theirs)


@pytest.mark.parametrize("convolved", [False, True])
@pytest.mark.parametrize("groups", [3, None])
def test_norms_of_numbers_far_from_zero(groups: int | None, convolved: bool, tmp_path: Path) -> None:
    """None stands for an instance norm. With convolutions the channels are the last axis."""
    torch.manual_seed(0)
    norm = torch.nn.InstanceNorm2d(6, affine=True) if groups is None else torch.nn.GroupNorm(groups, 6)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    layers = [norm, torch.nn.SiLU()]
    if convolved:
        layers = [torch.nn.Conv2d(6, 6, 1), *layers, torch.nn.Conv2d(6, 4, 1)]
        torch.nn.init.eye_(layers[0].weight[:, :, 0, 0].detach())
    net = torch.nn.Sequential(*layers).eval()
    x = torch.randn(2, 6, 9, 16)
    slipstream.compile(net, tmp_path / "norm", example_inputs=(x,))
    run = slipstream.load(tmp_path / "norm")
    for mean in (0.0, 1000.0):
        with torch.no_grad():
            expected = net(x + mean)
        np.testing.assert_allclose(run((x + mean).numpy())[0], expected, rtol=5e-3, atol=5e-3)
    assert np.isfinite(run(np.full(x.shape, 255.1, np.float32))[0]).all()


def test_mistakes(net: Net, example: tuple) -> None:
    with pytest.raises(ModelError, match="needs example inputs"):
        slipstream.load_model(net)
    with pytest.raises(ModelError, match="a dict is no model"):
        slipstream.load_model({})
    batch = torch.export.Dim("batch", min=2, max=64)
    linear = torch.nn.Linear(3, 4).eval()
    dynamic = torch.export.export(linear, (torch.randn(4, 3),), dynamic_shapes=({0: batch},))
    with pytest.raises(UnsupportedModelError, match="'input' is dynamic in axis 0"):
        slipstream.load_model(dynamic)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        pytest.param("GRU", {}, marks=pytest.mark.slow),
        pytest.param("RNN", {"nonlinearity": "relu", "bidirectional": True, "bias": False}, marks=pytest.mark.slow),
    ],
)
def test_recurrent_layers_are_programs_of_their_own(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    class Listener(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = getattr(torch.nn, kind)(9, 12, **options)

        def forward(self, x: Any) -> Any:
            y, states = self.layers(x)
            return (y, *states) if isinstance(states, tuple) else (y, states)

    model = load_model(Listener().eval(), example_inputs=(torch.randn(2, 5, 9),))
    programs = [variable.name_hint for variable in model.module.get_global_vars()]
    assert 1 <= sum(name.startswith(f"{kind.lower()}_steps") for name in programs) <= options.get("num_layers", 1)
    assert slipstream.compile(model, tmp_path / "out").verification is not None


@pytest.mark.slow
def test_a_speech_network_exported_both_ways(tmp_path: Path) -> None:
    class Speech(torch.nn.Module):
        """Convolution, two layers of LSTM in both directions, a classifier of every step."""

        def __init__(self) -> None:
            super().__init__()
            self.front = torch.nn.Conv1d(20, 32, 3, padding=1)
            self.layers = torch.nn.LSTM(32, 48, num_layers=2, batch_first=True, bidirectional=True)
            self.classes = torch.nn.Linear(96, 10)

        def forward(self, x: Any) -> Any:
            y, _ = self.layers(torch.relu(self.front(x.transpose(1, 2))).transpose(1, 2))
            return torch.log_softmax(self.classes(y), -1)

    model, x = Speech().eval(), torch.randn(1, 30, 20)
    path = tmp_path / "speech.onnx"
    torch.onnx.export(model, (x,), str(path), dynamo=False, input_names=["x"], output_names=["y"])
    expected = model(x).detach().numpy()
    for source, options in ((path, {}), (model, {"example_inputs": (x,)})):
        artifact = slipstream.compile(source, tmp_path / "out", **options)
        output = slipstream.load(artifact.directory)(x.numpy())[0]
        np.testing.assert_allclose(output, expected, atol=1e-5)


def test_a_model_in_half_precision_keeps_its_types_and_computes_in_float32(tmp_path: Path, example: tuple) -> None:
    net = Net().eval().half()
    image, tokens = example[0].half(), example[1]
    result = slipstream.compile(net, tmp_path / "half", example_inputs=(image, tokens))
    assert [spec.dtype for spec in result.manifest.inputs] == ["float16", "int64"]
    assert [spec.dtype for spec in result.manifest.outputs] == ["float16", "float16"]
    with torch.no_grad():
        expected = Net.forward(net.float(), image.float(), tokens)
    for mine, theirs in zip(slipstream.load(tmp_path / "half")(image, tokens), expected, strict=True):
        np.testing.assert_allclose(torch.from_dlpack(mine).float().numpy(), theirs.numpy(), rtol=1e-3, atol=1e-3)


def test_parts_in_bfloat16_are_computed_in_float32_and_inputs_in_it_are_refused(tmp_path: Path) -> None:
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = torch.nn.Linear(8, 4).bfloat16()

        def forward(self, x):
            return self.product(x.bfloat16()).float()

    slipstream.compile(Mixed().eval(), tmp_path / "mixed", example_inputs=(torch.randn(2, 8),))
    with pytest.raises(UnsupportedModelError, match="input 'x' is bfloat16"):
        load_model(Mixed().eval(), example_inputs=(torch.randn(2, 8).bfloat16(),))


class Stateful(torch.nn.Module):
    """A state in a tuple, a flag, an option by keyword, and an output that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(8, 8, batch_first=True)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, state, double, *, scale=None, times=1):
        y, state = self.layer(x * 2 if double else x, state)
        y, weights = self.attention(y, y, y, need_weights=False)
        return {"y": y * times if scale is None else y * scale, "weights": weights, "state": state}


@pytest.mark.parametrize("half", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_inputs_and_outputs_that_are_not_all_tensors(half: bool, tmp_path: Path) -> None:
    from slipstream.artifact.bench import bench

    net = Stateful().eval()
    x, h, c, scale = torch.randn(2, 5, 8), torch.randn(1, 2, 8), torch.randn(1, 2, 8), torch.randn(8)
    if half:
        result = slipstream.compile(net.half(), tmp_path / "out", example_inputs=(x.half(), (h.half(), c.half()), True))
        assert [spec.name for spec in result.manifest.inputs] == ["x", "state_0", "state_1"]
        return
    program = torch.export.export(net, (x, (h, c), True), {"times": 3, "scale": scale})
    torch.export.save(program, tmp_path / "net.pt2")
    result = slipstream.compile(tmp_path / "net.pt2", tmp_path / "out")
    assert len(result.manifest.outputs) == 3
    with torch.no_grad():
        expected = net(x, (h, c), True, scale=scale)
    actual = slipstream.load(tmp_path / "out")(x=x, state_0=h, state_1=c, scale=scale)
    for mine, theirs in zip(actual, (expected["y"], *expected["state"]), strict=True):
        np.testing.assert_allclose(torch.from_dlpack(mine).numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
    assert bench(tmp_path / "out", against=["torch"], seconds=0.5).parts


def test_an_output_that_is_a_number_is_refused() -> None:
    class Counts(torch.nn.Module):
        def forward(self, x):
            return x + 1, x.shape[0]

    with pytest.raises(UnsupportedModelError, match="output 1 of the model is no tensor"):
        load_model(Counts(), example_inputs=(torch.ones(3),))
