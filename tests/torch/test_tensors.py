"""Tensors of any layout and type go in and come out as eager PyTorch has them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch.captured import all_are_compiled, compiled, graphs, same  # noqa: E402


def test_inputs_of_any_layout() -> None:
    def twice(x: Any) -> Any:
        return x.clone(memory_format=torch.contiguous_format) * 2

    fast, dense = compiled(twice, dynamic=False), torch.randn(2, 3, 4, 4)
    for x in (
        dense,
        dense.to(memory_format=torch.channels_last),
        torch.randn(4, 3, 4, 2).transpose(0, 3),
        torch.randn(2, 3, 4, 8)[..., ::2],
        torch.randn(2, 3, 1, 1).expand(2, 3, 4, 4),
        torch.randn(97)[1:].view(2, 3, 4, 4),
    ):
        same(fast(x), x * 2)
    assert all_are_compiled()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_outputs_have_the_strides_that_eager_pytorch_gives_them(memory_format: Any) -> None:
    """Views of results too, which are made from the results by their strides."""

    def shuffled(x: Any) -> tuple[Any, ...]:
        y = x.transpose(1, 2) * 2
        z = torch.relu(x + 1)
        return y, y[:, 1:3], z, z[:, 1:], z.flatten(2).transpose(1, 2)

    x = torch.randn(2, 3, 4, 5).to(memory_format=memory_format)
    fast, wanted = compiled(shuffled), shuffled(x)
    for _ in range(2):
        got = fast(x)
        same(got, wanted)
        assert [one.stride() for one in got] == [one.stride() for one in wanted]
    assert all_are_compiled()


def test_scalars_integers_and_truth_values() -> None:
    def mixed(number: Any, ids: Any, mask: Any, bytes_: Any) -> tuple[Any, ...]:
        return number * 2, ids + 1, torch.where(mask, ids, 0), ~mask, bytes_ > 3, number > 0

    given = (torch.tensor(1.5), torch.arange(6), torch.arange(6) % 2 == 0, torch.arange(6, dtype=torch.uint8))
    fast = compiled(mixed)
    got, wanted = fast(*given), mixed(*given)
    same(got, wanted)
    assert [one.dtype for one in got] == [one.dtype for one in wanted]
    assert all_are_compiled()


def test_tensors_without_elements() -> None:
    def joined(x: Any, y: Any) -> Any:
        return torch.cat([x, y], 1) + 1

    x, y = torch.randn(2, 0), torch.randn(2, 3)
    same(compiled(joined)(x, y), joined(x, y))


def test_dense_inputs_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    from slipstream.runtime.library import ModelLibrary

    fast, x = compiled(lambda x: x + 1), torch.randn(64, 64)
    fast(x)
    seen: list[int] = []
    run = ModelLibrary.run
    monkeypatch.setattr(
        ModelLibrary,
        "run",
        lambda self, inputs: seen.extend(one.__array_interface__["data"][0] for one in inputs) or run(self, inputs),
    )
    fast(x)
    assert seen == [x.data_ptr()]


def test_a_model_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model, x = torch.nn.Linear(4, 4).eval(), torch.randn(1, 4)
        fast = compiled(model)
        same(fast(x), model(x))
        same(fast(x), model(x))
    assert all_are_compiled()


def test_parameters_that_are_replaced_behind_pytorchs_back() -> None:
    model, x = torch.nn.Linear(4, 4).eval(), torch.randn(1, 4)
    fast = compiled(model)
    fast(x)
    model.weight.data = torch.randn(4, 4)
    same(fast(x), model(x))


def test_threads_that_call_for_the_first_time_at_once() -> None:
    functions: list[Callable[[Any], Any]] = [
        lambda x: x * 2 + 1,
        lambda x: torch.relu(x) @ x,
        lambda x: x.softmax(-1),
    ]
    fast, x, found = [compiled(one) for one in functions], torch.randn(8, 8), {}
    together = threading.Barrier(6)

    def call(number: int) -> None:
        together.wait()
        with torch.no_grad():
            found[number] = fast[number % 3](x)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(6):
        same(found[number], functions[number % 3](x))
    # Two threads may capture the same function, each a graph of it.
    variants = [variant for graph in graphs() for variant in graph.variants.values()]
    assert len(variants) >= 3
    assert all(variants)
