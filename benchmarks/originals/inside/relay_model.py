"""Imports an ONNX model as the artifact's scripts import theirs."""

from __future__ import annotations

import importlib
import inspect
import types
from typing import Any

_WRONG_WITH_LAYOUTS = {
    "len(tensor_b).shape == 2": "auto_scheduler_rewritten_layout",
    "_b = tensor_b.shape[:-2]": "_b = [] if auto_scheduler_rewritten_layout else tensor_b.shape[:-2]",
}


def import_model(path: str, layout: str) -> Any:
    """The Relay module with its weights as constants; in NHWC by the passes the artifact's scripts use for it."""
    import onnx
    import tvm
    from tvm import relay

    _mend_dense_layers()
    module, _ = relay.frontend.from_onnx(onnx.load(path), freeze_params=True)
    if layout == "NHWC":
        passes = [
            relay.transform.RemoveUnusedFunctions(),
            relay.transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]}),
        ]
        with tvm.transform.PassContext(opt_level=3):
            module = tvm.transform.Sequential(passes)(module)
    return module


def _mend_dense_layers() -> None:
    """Let dense layers be tuned and built on a CPU: in the artifact's TVM no model with one has a latency.

    The layouts that Ansor gives weights cannot name an axis with a digit, so every program fails. The axes are named b,
    i and j, as in earlier versions, in place of i0, i1 and i2. And a weight that has such a layout is taken for a
    tensor with batch dimensions, by a test that is itself wrong: its two dimensions are read off the layout.
    """
    from tvm import te

    def compute(shape: Any, function: Any, **options: Any) -> Any:
        named = {2: lambda i, j: function(i, j), 3: lambda b, i, j: function(b, i, j)}
        unnamed = inspect.getfullargspec(function).varargs is not None
        return te.compute(shape, named.get(len(shape), function) if unnamed else function, **options)

    # `tvm.topi.nn.dense` is also the name of a function.
    dense = importlib.import_module("tvm.topi.nn.dense")
    dense.te = types.SimpleNamespace(**{**vars(te), "compute": compute})
    source = inspect.getsource(dense.matmul)
    for wrong, right in _WRONG_WITH_LAYOUTS.items():
        assert source.count(wrong) == 1, f"another TVM than the artifact's: {wrong} is not there"
        source = source.replace(wrong, right)
    exec(compile(source, dense.__file__, "exec"), vars(dense))
