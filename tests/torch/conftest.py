from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing captured or compiled before, no gradients."""
    import torch

    import slipstream.torch
    from slipstream.torch.graph import _graphs

    monkeypatch.setenv("SLIPSTREAM_TORCH_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    torch._dynamo.reset()
    _graphs.clear()
    slipstream.torch._warn_of_training.cache_clear()
    with torch.no_grad():
        yield
    torch._dynamo.reset()
