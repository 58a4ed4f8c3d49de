"""Where and with what a benchmark ran, as every raw result says it."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from slipstream.hardware import cpu_model

_PACKAGES = ("slipstream", "apache-tvm", "numpy", "xgboost-cpu", "onnxruntime", "torch")


def describe_machine() -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpu": cpu_model(), "architecture": platform.machine(), "cores": os.cpu_count()},
        "versions": {"python": sys.version.split()[0], **{name: _version(name) for name in _PACKAGES}},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
