"""The backend on an NVIDIA GPU: streams, threads, layouts and types. `pytest -m gpu tests/torch/test_cuda.py` there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.gpu import needs_gpu  # noqa: E402
from tests.torch.captured import all_are_compiled, compiled, graphs  # noqa: E402

pytestmark = [
    *needs_gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this PyTorch is built without CUDA"),
]


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    of = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [backend.allow_tf32 for backend in of]
    for backend in of:
        backend.allow_tf32 = False
    yield
    for backend, allowed in zip(of, before, strict=True):
        backend.allow_tf32 = allowed


def convnet() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval().cuda()


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 1).eval().cuda()


def images(**options: Any) -> Any:
    return torch.randn(2, 3, 16, 16, device="cuda", **options)


def same(one: Any, other: Any, tolerance: float = 1e-3) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert one.device == other.device


def test_a_convnet_is_compiled_once_and_used_again() -> None:
    model = convnet()
    fast = compiled(model)
    for _ in range(3):
        x = images()
        same(fast(x), model(x))
    assert all_are_compiled()
    (graph,) = graphs()
    assert len(graph.variants) == 1
    (variant,) = graph.variants.values()
    assert variant is not None
    assert variant.model.manifest.gpu


def test_a_transformer_encoder() -> None:
    model, x = encoder(), torch.randn(2, 6, 32, device="cuda")
    same(compiled(model)(x), model(x))
    assert all_are_compiled()


def test_layouts_offsets_and_gradients_of_inputs() -> None:
    model = convnet()
    fast, x = compiled(model, dynamic=False), images()
    fast(x)
    for other in (
        x.to(memory_format=torch.channels_last),
        torch.randn(2, 3, 16, 32, device="cuda")[..., ::2],
        torch.randn(2 * 3 * 16 * 16 + 1, device="cuda")[1:].view(2, 3, 16, 16),
        images(requires_grad=True),
    ):
        same(fast(other), model(other))


def test_integers_scalars_and_results_that_are_no_tensors() -> None:
    def mixed(x: Any, ids: Any, mask: Any, number: Any) -> tuple[Any, ...]:
        return x[ids], torch.where(mask, ids, 0), x.sum(), x * number, x.shape[0]

    x, ids = torch.randn(6, 4, device="cuda"), torch.tensor([1, -1, 3], device="cuda")
    given = x, ids, ids > 0, torch.tensor(2.0, device="cuda")
    for one, other in zip(compiled(mixed)(*given), mixed(*given), strict=True):
        same(one, other) if isinstance(other, torch.Tensor) else None
        assert type(one) is type(other)
    assert all_are_compiled()


def test_another_stream() -> None:
    """Inputs are made and results are used on it, without any wait on the host; buffers are used again at once."""
    model = convnet()
    fast, stream = compiled(model), torch.cuda.Stream()
    fast(images())
    slow = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        wanted, found = [], []
        for number in range(20):
            x = images() + (slow @ slow).mean() * 0 + number / 10
            wanted.append(model(x))
            found.append(fast(x) * 1)
    torch.cuda.synchronize()
    for one, other in zip(found, wanted, strict=True):
        same(one, other)


def test_two_threads_with_streams_of_their_own() -> None:
    model = convnet()
    fast = compiled(model)
    fast(images())
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def call(seed: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.no_grad(), torch.cuda.stream(stream):
                generator = torch.Generator("cuda").manual_seed(seed)
                for _ in range(50):
                    x = torch.randn(2, 3, 16, 16, device="cuda", generator=generator)
                    y = fast(x) + 0
                    same(y, model(x))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_products_in_half_precision() -> None:
    model, x = convnet(), images()
    y = compiled(model, dtype="float16")(x)
    assert y.dtype == torch.float32
    same(y, model(x), 2e-2)
    assert all_are_compiled()


def test_a_model_in_half_precision() -> None:
    model, x = convnet().half(), images().half()
    y = compiled(model)(x)
    assert y.dtype == torch.float16
    same(y, model(x), 2e-2)
    assert all_are_compiled()


def test_changed_buffers_stay_on_the_gpu() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(3, device="cuda"))

        def forward(self, x: Any) -> Any:
            self.calls.add_(1)
            return x + self.calls

    model, x = Counts().eval(), torch.ones(3, device="cuda")
    fast = compiled(model)
    for number in (1, 2, 3):
        same(fast(x), x + number)
    assert all_are_compiled()


def test_a_call_that_a_cuda_graph_records() -> None:
    """It is recorded as PyTorch runs it."""
    model, x = convnet(), images()
    fast = compiled(model)
    wanted = fast(x)
    model(x)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = fast(x)
    graph.replay()
    torch.cuda.synchronize()
    same(y, wanted)


def test_tuning() -> None:
    model, x = convnet(), images()
    import slipstream.torch

    fast = compiled(model)
    fast(x)
    slipstream.torch.tune(fast, trials=8)
    (variant,) = graphs()[0].variants.values()
    assert variant is not None
    assert variant.model.manifest.tuned["trials"] > 0
    same(fast(x), model(x))
