"""Finding nodes of TVM's expressions and statements."""

from __future__ import annotations

from typing import Any

import tvm_ffi


def nodes(root: Any, node_type: Any) -> list[Any]:
    """Every node of a type below `root`, inner ones before those that hold them."""
    found: list[Any] = []
    tvm_ffi.structural_walk(root, ((node_type, found.append),))
    return found
