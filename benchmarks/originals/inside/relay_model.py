"""Imports an ONNX model as the artifact's scripts import theirs."""

from __future__ import annotations

import importlib
import inspect
import types
from typing import Any


def import_model(path: str, layout: str) -> Any:
    """The Relay module with its weights as constants; in NHWC by the passes the artifact's scripts use for it."""
    import onnx
    import tvm
    from tvm import relay

    _name_axes_of_dense_layers()
    module, _ = relay.frontend.from_onnx(onnx.load(path), freeze_params=True)
    if layout == "NHWC":
        passes = [
            relay.transform.RemoveUnusedFunctions(),
            relay.transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]}),
        ]
        with tvm.transform.PassContext(opt_level=3):
            module = tvm.transform.Sequential(passes)(module)
    return module


def _name_axes_of_dense_layers() -> None:
    """Name the axes of a dense layer b, i and j, as earlier versions of TVM did, in place of i0, i1 and i2.

    The layouts that Ansor gives weights cannot name an axis with a digit: in the artifact's TVM every program of a
    dense layer fails on a CPU, and no model with one has a latency.
    """
    from tvm import te

    def compute(shape: Any, function: Any, **options: Any) -> Any:
        named = {2: lambda i, j: function(i, j), 3: lambda b, i, j: function(b, i, j)}
        unnamed = inspect.getfullargspec(function).varargs is not None
        return te.compute(shape, named.get(len(shape), function) if unnamed else function, **options)

    # `tvm.topi.nn.dense` is also the name of a function.
    importlib.import_module("tvm.topi.nn.dense").te = types.SimpleNamespace(**{**vars(te), "compute": compute})
