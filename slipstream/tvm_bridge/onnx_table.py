"""TVM's table of converters for ONNX operators, replaced during an import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm.relax.frontend.onnx import onnx_frontend


def stock_converters() -> dict[str, Any]:
    """TVM's own converters by the operator's name; not to be called within `with_converters`."""
    table: dict[str, Any] = onnx_frontend._get_convert_map()
    return table


@contextmanager
def with_converters(table: dict[str, Any]) -> Iterator[None]:
    """Replace TVM's table, which its importer has no argument for."""
    stock = onnx_frontend._get_convert_map
    onnx_frontend._get_convert_map = lambda: table
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = stock
