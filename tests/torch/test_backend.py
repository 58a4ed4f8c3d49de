"""`torch.compile(..., backend="slipstream")`: what PyTorch computes, compiled; eager where that cannot be."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch  # noqa: E402
from slipstream.errors import InputError  # noqa: E402
from tests.torch.captured import compiled, graphs, same, warnings_of  # noqa: E402


class Net(torch.nn.Module):
    """A convolution, statistics as buffers, several outputs by name, one of them an input and one a view."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: Any) -> dict[str, Any]:
        y = torch.relu(self.norm(self.convolution(x)))
        return {"logits": self.head(y.mean((2, 3))), "input": x, "view": y[:, :2]}


class Counts(torch.nn.Module):
    """Changes its buffer and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: Any) -> tuple[Any, Any]:
        self.calls.add_(1)
        x.mul_(2)
        return x + self.calls, x


def test_the_package_registers_the_backend() -> None:
    (found,) = entry_points(group="torch_dynamo_backends", name="slipstream")
    assert found.load() is slipstream.torch.backend


def test_outputs_by_name_that_are_inputs_or_views_and_new_parameters() -> None:
    net, x = Net().eval(), torch.randn(1, 3, 16, 16)
    fast = compiled(net)
    same(fast(x), net(x))
    assert fast(x)["input"] is x
    (graph,) = graphs()
    assert all(graph.variants.values())
    before = fast(x)["logits"]
    net.head.weight.mul_(2)
    same(fast(x), net(x))
    assert not torch.allclose(before, fast(x)["logits"])


def test_buffers_and_inputs_that_are_changed(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Counts().eval(), torch.ones(3)
    fast = compiled(model)
    for calls in range(1, 6):
        total, returned = fast(x)
        assert returned is x
        same(x, torch.full((3,), 2.0**calls))
        same(total, x + calls)
        same(model.calls, torch.full((3,), float(calls)))
    (graph,) = graphs()
    assert [variant is not None for variant in graph.variants.values()] == [True]
    assert not warnings_of(caplog)


def test_graph_breaks_shapes_and_threads(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(x: Any) -> Any:
        y = x * 2 + 1
        print("not part of a graph")
        return torch.sin(y) @ y.T

    fast = compiled(broken)
    for size in (4, 6):
        x = torch.randn(size, size)
        same(fast(x), broken(x))
    assert capsys.readouterr().out.count("not part of a graph") == 4
    assert len(graphs()) >= 2
    with ThreadPoolExecutor(4) as pool, torch.no_grad():
        inputs = [torch.randn(4, 4) for _ in range(40)]
        for x, y in zip(inputs, pool.map(torch.no_grad()(fast), inputs), strict=True):
            same(y, torch.sin(x * 2 + 1) @ (x * 2 + 1).T)


def test_what_cannot_be_compiled_runs_in_eager_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    def sorts(x: Any) -> Any:
        return torch.linalg.eigvalsh(x @ x.T)

    fast, x = compiled(sorts), torch.randn(4, 4)
    same(fast(x), sorts(x))
    same(fast(x), sorts(x))
    (said,) = warnings_of(caplog)
    assert "nodes in eager PyTorch: " in said


def test_training_runs_in_eager_pytorch_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    with torch.enable_grad():
        for size in (16, 20):
            compiled(net)(torch.randn(2, 3, size, size))["logits"].sum().backward()
    assert net.head.weight.grad is not None
    (said,) = warnings_of(caplog)
    assert "slipstream does not train" in said
    assert not graphs()


def test_dropout_of_a_model_in_training_mode_stays_random(caplog: pytest.LogCaptureFixture) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout()), torch.ones(1, 64)
    fast = compiled(model)
    assert not torch.equal(fast(x), fast(x))
    (said,) = warnings_of(caplog)
    assert "call model.eval() first" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budgte": "3m"}, "no option 'budgte': it has budget, store, dtype, threads, max_shapes"),
        ({"budget": "3 moons"}, "the option 'budget' of '3 moons' makes no sense: write 5m"),
        ({"budget": 0}, "the option 'budget' of 0 allows nothing"),
        ({"store": 3}, "the option 'store' has to be a path, not 3"),
        (
            {"dtype": torch.float16},
            "the option 'dtype' has to be one of float32, float16, bfloat16, tf32 as text, not torch.float16",
        ),
        ({"threads": 0}, "the option 'threads' has to be a whole number from 1, not 0"),
        ({"max_shapes": True}, "the option 'max_shapes' has to be a whole number from 1, not True"),
    ],
)
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=re.escape(said)):
        compiled(lambda x: x + 1, **options)(torch.randn(4))


def test_what_was_never_called_cannot_be_tuned() -> None:
    with pytest.raises(InputError, match="call it once under"):
        slipstream.torch.tune(compiled(Net().eval()))


NEXT = """
import logging, sys, torch
import slipstream.artifact.compile
from tests.torch.test_backend import Net
import slipstream.torch
def compiles(*_, **__): raise AssertionError("compiled again")
slipstream.artifact.compile.compile = compiles
torch.manual_seed(0)
net, x = Net().eval(), torch.randn(1, 3, 16, 16)
with torch.no_grad():
    torch.testing.assert_close(torch.compile(net, backend="slipstream")(x), net(x), rtol=1e-4, atol=1e-4)
(graph,) = slipstream.torch.graph._graphs
(variant,) = graph.variants.values()
print(variant.model.manifest.tuned.get("trials", 0) > 0)
"""


def test_tuned_code_is_swapped_in_and_the_next_process_starts_with_it(tmp_path: Path) -> None:
    net, x = Net().eval(), torch.randn(1, 3, 16, 16)
    fast = compiled(net)
    fast(x)
    (graph,) = graphs()
    (variant,) = graph.variants.values()
    assert variant is not None
    assert not variant.model.manifest.tuned
    slipstream.torch.tune(fast, trials=8)
    assert variant.model.manifest.tuned["trials"] > 0
    same(fast(x), net(x))
    done = subprocess.run([sys.executable, "-c", NEXT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.slow
def test_tuning_in_the_background() -> None:
    net, x = Net().eval(), torch.randn(1, 3, 16, 16)
    fast = compiled(net, budget="20s")
    fast(x)
    (graph,) = graphs()
    (variant,) = graph.variants.values()
    assert variant is not None
    _until(lambda: bool(variant.model.manifest.tuned))
    same(fast(x), net(x))


def _until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
