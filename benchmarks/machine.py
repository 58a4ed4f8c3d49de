"""Date, machine, versions and commit of a benchmark run, stored with every raw result."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slipstream.machine.cpu import cpu_model

_PACKAGES = ("slipstream", "apache-tvm", "numpy", "xgboost-cpu", "onnxruntime", "torch")
_RIVALS = ("openvino", "iree-base-compiler")  # named where they are installed


def describe_machine() -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpu": cpu_model(), "architecture": platform.machine(), "cores": os.cpu_count()},
        "versions": {
            "python": sys.version.split()[0],
            **{name: _version(name) for name in _PACKAGES},
            **{name: found for name in _RIVALS if (found := _version(name))},
            "commit": _commit(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _commit() -> str | None:
    """Of the sources this runs from; with a plus if they have uncommitted changes."""
    here, sources = Path(__file__).parents[1], ("slipstream", "benchmarks/*.py")
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        )
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *sources], cwd=here, check=False)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed.returncode else "")
