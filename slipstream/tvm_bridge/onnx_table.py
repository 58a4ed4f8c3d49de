"""TVM's importer for ONNX: its table of converters, replaced during an import, which node it is at, no checker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import onnx
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


@contextmanager
def without_checker() -> Iterator[None]:
    """Let the importer take a model that ONNX Runtime has read as it is: the checker of the `onnx` package, whose
    complaints would be warnings, serialises all weights."""
    stock = onnx.checker.check_model
    onnx.checker.check_model = lambda *_, **__: None
    try:
        yield
    finally:
        onnx.checker.check_model = stock


@dataclass
class ImportTrace:
    """The node that TVM's importer converted last, and the Relax expressions of all values so far."""

    node: Any = None
    values: dict[str, Any] = field(default_factory=dict)


@contextmanager
def traced_import() -> Iterator[ImportTrace]:
    """Follow an import: of its errors, hardly any says where it occurred."""
    importer, trace = onnx_frontend.ONNXGraphImporter, ImportTrace()
    stock = importer._construct_nodes

    def construct(self: Any, graph: Any) -> Any:
        trace.values = self._nodes

        def nodes() -> Iterator[Any]:
            for trace.node in graph.node:
                yield trace.node

        return stock(self, SimpleNamespace(node=nodes()))

    importer._construct_nodes = construct
    try:
        yield trace
    finally:
        importer._construct_nodes = stock
