"""What tests of GPUs share: which of them can run here, and operators to try them on.

`pytest -m gpu` on a machine with an NVIDIA GPU runs those that need one; everywhere else they are skipped.
"""

from __future__ import annotations

from functools import cache

import pytest

from slipstream.frontends import load_model
from slipstream.graph.operators import Operator, extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine import nvrtc
from slipstream.machine.cuda import find_device
from slipstream.machine.target import Target, resolve_target

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(find_device() is None, reason="no NVIDIA GPU answers here")]
needs_nvrtc = pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")


@cache
def some_gpu(dtype: str = "float32") -> Target:
    """A GPU nobody has to have."""
    return resolve_target("cuda:sm_90", dtype=dtype)


@cache
def operators(model: str = "zoo:tiny_cnn", dtype: str = "float32") -> list[Operator]:
    """The operators of a model, prepared for a GPU."""
    return extract_operators(prepare(load_model(model).module, some_gpu(dtype))[0])
