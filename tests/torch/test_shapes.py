"""Inputs whose shapes change from call to call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch.captured import compiled, graphs, same, warnings_of  # noqa: E402


class Pooled(torch.nn.Module):
    """The length of its input is in the result."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Linear(8, 16)

    def forward(self, x: Any) -> tuple[Any, ...]:
        y = torch.relu(self.table(x))
        return y.flatten(0, 1), y.mean(1) * x.shape[1], x.shape[1] + 1


def test_a_symbolic_graph_is_compiled_for_each_shape_up_to_a_number(caplog: pytest.LogCaptureFixture) -> None:
    model = Pooled().eval()
    fast = compiled(model, dynamic=True, max_shapes=2)
    for _ in range(2):
        for length in (3, 5, 7, 9):
            x = torch.randn(2, length, 8)
            same(fast(x), model(x))
    (graph,) = graphs()
    assert [variant is not None for variant in graph.variants.values()] == [True, True, False]
    (said,) = warnings_of(caplog)
    assert "for further shapes: it was compiled for 2; pad inputs" in said


@pytest.mark.slow
def test_a_marked_dimension() -> None:
    model = Pooled().eval()
    fast = compiled(model)
    for length in (4, 6):
        x = torch.randn(2, length, 8)
        torch._dynamo.mark_dynamic(x, 1)
        same(fast(x), model(x))
    (graph,) = graphs()
    assert [variant is not None for variant in graph.variants.values()] == [True, True]


@pytest.mark.slow
def test_equal_weights_are_one_file(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(8, 16).eval(), torch.randn(4, 8)
    for threads in (1, 2):
        torch._dynamo.reset()
        compiled(model, threads=threads)(x)
    files = list((tmp_path / "cache").glob("*/model/weights.bin"))
    assert len(files) == 2
    assert os.path.samefile(*files)


def test_a_graph_that_cannot_be_compiled_is_not_tried_for_every_shape(caplog: pytest.LogCaptureFixture) -> None:
    def values(x: Any) -> Any:
        return torch.linalg.eigvalsh(x @ x.transpose(0, 1))

    fast = compiled(values, dynamic=True)
    for size in (3, 4, 5):
        x = torch.randn(size, size)
        same(fast(x), values(x))
    assert len(warnings_of(caplog)) == 1
