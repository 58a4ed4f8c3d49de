"""An ONNX graph of static shapes → a Relax module, or at which node that fails."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx

from slipstream.errors import UnsupportedModelError
from slipstream.frontends.inputs import TensorSpec
from slipstream.frontends.onnx_support import refusals

# Messages of the importer when a shape is computed at run time; none of them names the cause.
_DYNAMIC_SHAPE_MESSAGES = (
    "to be Shape",
    "ShapeExpr",
    "'PrimType'",
    "emit_te now only supports",
    "static shape",
    "IntImm",
)


def known_refusals(
    graph: onnx.GraphProto, reasons: Mapping[str, str] = MappingProxyType({}), *, before_rewriting: bool = False
) -> dict[int, str]:
    """The nodes that cannot be compiled, by their positions, as far as their operators and types say.

    `reasons` why nodes could not be rewritten are by their first outputs. Before rewriting, more operators will do.
    """
    from slipstream.frontends.onnx_converters import convert_map
    from slipstream.frontends.onnx_rewrites import REWRITES

    found = refusals(graph, convert_map().keys(), REWRITES.keys() if before_rewriting else ())
    return {index: reasons.get(graph.node[index].output[0], reason) for index, reason in found.items()}


class NodeRefusedError(UnsupportedModelError):
    """TVM's importer failed at one node, which is the one that computes `output`; nothing if it is not known."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def import_graph(model: onnx.ModelProto) -> Any:
    """The model as a Relax module of static shapes; `NodeRefusedError` says at which node that fails."""
    from tvm.relax.frontend.onnx import from_onnx

    from slipstream.frontends.onnx_converters import our_converters
    from slipstream.tvm_bridge.native_output import quiet_native_code
    from slipstream.tvm_bridge.onnx_table import traced_import, without_checker

    with traced_import() as trace:
        try:
            with (
                our_converters(),
                without_checker(),
                quiet_native_code(),
                contextlib.redirect_stdout(io.StringIO()),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                module = from_onnx(model)
        except Exception as error:
            raise _import_failure(error, trace.node) from error
    operator = _dynamic_call(module)
    outputs = {value.name for value in model.graph.output}
    for node in model.graph.node:
        values = [(name, trace.values.get(name)) for name in node.output if name]
        if operator and any(value is not None and not _is_static(value.ty) for _, value in values):
            raise NodeRefusedError(f"the size of a result of {node.op_type} depends on the data", values[0][0])
        if any(name in outputs and value is not None and not _is_tensor(value.ty) for name, value in values):
            raise NodeRefusedError(f"TVM makes no tensor of the result of {node.op_type}", values[0][0])
    if operator:
        raise NodeRefusedError(f"the size of a result of {operator} depends on the data")
    return module


def _import_failure(error: Exception, node: Any) -> NodeRefusedError:
    said = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__).strip()
    operator = "this model" if node is None else node.op_type
    why = said
    if any(text in said for text in _DYNAMIC_SHAPE_MESSAGES):
        why = f"a shape in it depends on the data at run time ({said})"
    output = "" if node is None else next(filter(None, node.output), "")
    return NodeRefusedError(f"TVM cannot import {operator}: {why}", output)


def _is_tensor(type_: Any) -> bool:
    from tvm import relax

    return isinstance(type_, relax.TensorType)


def _is_static(type_: Any) -> bool:
    from tvm import relax, tirx

    if isinstance(type_, relax.TupleType):
        return all(_is_static(field) for field in type_.fields)
    if not isinstance(type_, relax.TensorType):
        return True
    return type_.shape is not None and all(isinstance(extent, tirx.IntImm) for extent in type_.shape)


def _dynamic_call(module: Any) -> str:
    """The first operator of a result whose size only the data decides, which cannot be scheduled; empty if none is."""
    from tvm import relax

    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, relax.Call) and not _is_static(value.ty):
            found.append(str(getattr(value.op, "name", "a function")).removeprefix("relax."))

    relax.analysis.post_order_visit(module["main"], look)
    return found[0] if found else ""


def outputs_of(module: Any, names: Sequence[str]) -> tuple[TensorSpec, ...]:
    from tvm import relax

    returned = module["main"].ret_ty
    types = list(returned.fields) if isinstance(returned, relax.TupleType) else [returned]
    return tuple(output_spec(name, type_) for name, type_ in zip(names, types, strict=True))


def output_spec(name: str, type_: Any) -> TensorSpec:
    """The name, shape and type of one result of `main`."""
    try:
        return TensorSpec(name, tuple(int(extent) for extent in type_.shape), str(type_.dtype))
    except (TypeError, AttributeError, ValueError) as error:
        raise UnsupportedModelError(
            f"the shape of output {name!r} depends on the data: only models of static shapes can be compiled"
        ) from error


def refused_at(graph: onnx.GraphProto, error: NodeRefusedError) -> dict[int, str]:
    """The node at which an import failed, by its position, with the reason; raises if no node is to blame."""
    found = {index: str(error) for index, node in enumerate(graph.node) if error.output in node.output}
    if not error.output or not found:
        raise UnsupportedModelError(f"{error}; fix all input shapes with --shape") from error
    return found
