"""OpenVINO as something to bench against."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from slipstream.artifact.baselines import check_baseline, model_files, open_baseline
from slipstream.artifact.loaded import load
from slipstream.errors import InputError, MissingDependencyError
from slipstream.frontends.inputs import random_inputs


def test_it_computes_the_same(tiny_artifact: Path) -> None:
    pytest.importorskip("openvino")
    compiled = load(tiny_artifact)
    feeds = random_inputs(compiled.inputs, np.random.default_rng(0))
    files, _owner = model_files(compiled.manifest, None)
    run = open_baseline("openvino", files, feeds, 1)
    for _ in range(2):
        np.testing.assert_allclose(run()[0], compiled(feeds)[0], atol=1e-4)


def test_without_it_the_error_says_how_to_install_it(tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingDependencyError, match="pip install openvino"):
        open_baseline("openvino", model_files(load(tiny_artifact).manifest, None)[0], {}, 1)


def test_a_pytorch_model_does_not_go_in(tiny_artifact: Path) -> None:
    with pytest.raises(InputError, match="cannot run in OpenVINO as it is"):
        check_baseline("openvino", load(tiny_artifact).manifest, "model.pt2")
