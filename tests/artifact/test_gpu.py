"""Artifacts for a GPU, called with tensors that are there already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

import slipstream
from slipstream.errors import InputError
from tests.conftest import embedding_model
from tests.gpu import needs_gpu

pytestmark = needs_gpu


def test_indices_on_the_device_are_checked(tmp_path: Path) -> None:
    slipstream.compile(embedding_model(), tmp_path / "embedding", target="cuda")
    model = slipstream.load(tmp_path / "embedding")
    inside = tvm.runtime.tensor(np.array([[0, 1, 10, -1, 5]]), tvm.cuda())
    np.testing.assert_array_equal(model(inside)[0].numpy()[0, :, 0], [0, 2, 20, 20, 10])
    for call in (model, model.on_device):
        with pytest.raises(InputError, match="table of 11 rows"):
            call(tvm.runtime.tensor(np.full((1, 5), 11), tvm.cuda()))
