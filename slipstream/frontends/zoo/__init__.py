"""The model zoo: published architectures built as ONNX models with seeded random weights; nothing is downloaded.

Arithmetic and memory traffic are those of the real models; the weights are not trained, so outputs have no meaning.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import TYPE_CHECKING

from slipstream.errors import ModelError
from slipstream.frontends.zoo._count import multiply_adds, parameters

if TYPE_CHECKING:
    import onnx

__all__ = ["build", "multiply_adds", "names", "parameters"]

# Model -> the module with the function of that name. Imported on demand: `names()` must not pay for onnx.
_MODULES = {
    "tiny_cnn": "_tiny",
    "resnet18": "_resnet",
    "resnet50": "_resnet",
    "vgg16": "_vgg",
    "vgg19": "_vgg",
    "squeezenet1_1": "_squeezenet",
    "mobilenet_v1": "_mobilenet",
    "mobilenet_v2": "_mobilenet",
    "inception_v3": "_inception",
    "efficientnet_b0": "_efficientnet",
    "bert_base": "_bert",
    "transformer_encoder": "_transformer",
}


def names() -> tuple[str, ...]:
    """The names `build` accepts."""
    return tuple(_MODULES)


def build(name: str, *, seed: int = 0) -> onnx.ModelProto:
    """The model `name` with a symbolic batch dimension; the seed, not negative, decides every byte.

    Raises `ModelError` for a name that is not in `names()`.
    """
    if name not in _MODULES:
        raise ModelError(_unknown(name))
    from slipstream.frontends.zoo._graph import Graph

    graph = Graph(name, seed)
    getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)(graph)
    return graph.model


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, _MODULES, n=1)
    hint = f": did you mean {close[0]!r}?" if close else "."
    return f"unknown zoo model {name!r}{hint} Available: {', '.join(_MODULES)}"
