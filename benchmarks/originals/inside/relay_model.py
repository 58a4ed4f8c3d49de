"""Imports an ONNX model as the artifact's scripts import theirs, and names the target they name."""

from __future__ import annotations

from typing import Any


def import_model(path: str, layout: str) -> Any:
    """The Relay module with its weights as constants; in NHWC by the passes the artifact's scripts use for it."""
    import onnx
    import tvm
    from tvm import relay

    module, _ = relay.frontend.from_onnx(onnx.load(path), freeze_params=True)
    if layout == "NHWC":
        passes = [
            relay.transform.RemoveUnusedFunctions(),
            relay.transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]}),
        ]
        with tvm.transform.PassContext(opt_level=3):
            module = tvm.transform.Sequential(passes)(module)
    return module
