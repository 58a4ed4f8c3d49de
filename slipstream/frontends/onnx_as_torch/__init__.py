"""Runs an ONNX model in PyTorch, as a fair baseline: the module a torch user would have written by hand."""

from slipstream.frontends.onnx_as_torch.module import as_torch

__all__ = ["as_torch"]
