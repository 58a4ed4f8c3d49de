"""Slipstream: a trained model goes in, a compiled, verified, faster one comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.errors import SlipstreamError
from slipstream.version import VERSION

if TYPE_CHECKING:
    from slipstream.artifact.check import CheckResult, check
    from slipstream.artifact.compile import CompileResult, compile
    from slipstream.artifact.export import export
    from slipstream.artifact.loaded import CompiledModel, load
    from slipstream.frontends import Model, load_model
    from slipstream.session.result import TuningResult
    from slipstream.session.tune import resume, tune

__version__ = VERSION
__all__ = [
    "CheckResult",
    "CompileResult",
    "CompiledModel",
    "Model",
    "SlipstreamError",
    "TuningResult",
    "check",
    "compile",
    "export",
    "load",
    "load_model",
    "resume",
    "tune",
]

_HOMES = {
    "CheckResult": "slipstream.artifact.check",
    "check": "slipstream.artifact.check",
    "CompileResult": "slipstream.artifact.compile",
    "CompiledModel": "slipstream.artifact.loaded",
    "Model": "slipstream.frontends",
    "compile": "slipstream.artifact.compile",
    "export": "slipstream.artifact.export",
    "load": "slipstream.artifact.loaded",
    "load_model": "slipstream.frontends",
    "TuningResult": "slipstream.session.result",
    "resume": "slipstream.session.tune",
    "tune": "slipstream.session.tune",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `slipstream --help` does not wait for NumPy and TVM."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
