"""What tests of the backend share: compiling with it, comparing with eager PyTorch, and what became of graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import slipstream.torch
from slipstream.torch.graph import Graph, _graphs


def compiled(model: Any, *, dynamic: bool | None = None, **options: Any) -> Any:
    return torch.compile(model, backend=slipstream.torch.backend, options=options or None, dynamic=dynamic)


def same(one: Any, other: Any) -> None:
    """Every tensor of both is the same but for rounding."""
    one, other = (torch.utils._pytree.tree_leaves(_plain(value)) for value in (one, other))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def _plain(value: Any) -> Any:
    return value.to_tuple() if hasattr(value, "to_tuple") else value


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("slipstream")]


def graphs() -> list[Graph]:
    return list(_graphs)


def all_are_compiled() -> bool:
    """Whether there are graphs, and none runs in eager PyTorch."""
    return bool(graphs()) and all(graph.variants and all(graph.variants.values()) for graph in graphs())
