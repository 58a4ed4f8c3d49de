"""ONNX files and messages → `Model`."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from slipstream.errors import ModelError, UnsupportedModelError
from slipstream.frontends import sandbox
from slipstream.frontends.inputs import Array, TensorSpec
from slipstream.frontends.model import Model
from slipstream.frontends.onnx_files import save

_STANDARD_DOMAINS = ("", "ai.onnx")
# Operators of other domains with a converter; the rest of them is rewritten before the import, or refused.
_IMPORTED = {("com.microsoft", "DynamicQuantizeLSTM")}
# TVM gives these results of the largest possible size instead of the size the data determines.
_DATA_DEPENDENT = ("NonZero", "NonMaxSuppression", "Unique", "Compress")
# Messages of the importer when a shape is computed at run time; none of them names the cause.
_DYNAMIC_SHAPE_MESSAGES = (
    "to be Shape",
    "ShapeExpr",
    "'PrimType'",
    "emit_te now only supports",
    "static shape",
    "IntImm",
)


class OnnxReference:
    """The model with its shapes fixed, run by ONNX Runtime in the sandbox."""

    name = "onnxruntime"

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="slipstream-")

    @property
    def directory(self) -> Path:
        return Path(self._directory.name)

    @property
    def path(self) -> Path:
        """The model as it was given, but for its shapes."""
        return self.directory / "fixed.onnx"

    @property
    def clean_path(self) -> Path:
        """The same, simplified: what TVM imports."""
        return self.directory / "clean.onnx"

    def outputs(self, feeds: Sequence[dict[str, Array]]) -> list[list[Array]]:
        with tempfile.TemporaryDirectory(dir=self.directory) as scratch:
            given = [str(Path(scratch, f"in{i}.npz")) for i in range(len(feeds))]
            returned = [str(Path(scratch, f"out{i}.npz")) for i in range(len(feeds))]
            for path, feed in zip(given, feeds, strict=True):
                np.savez(path, **feed)  # type: ignore[arg-type]  # any name is allowed, unlike in the stub
            sandbox.call("run", model=str(self.path), feeds=given, results=returned)
            return [_read_positional(path) for path in returned]


def _read_positional(path: str) -> list[Array]:
    with np.load(path) as archive:
        return [archive[f"arr_{i}"] for i in range(len(archive.files))]


def clean_onnx(
    model: Path | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]],
    constants: Mapping[str, float],
    disposable: bool = False,
) -> tuple[OnnxReference, dict[str, Any]]:
    """Fix and simplify the model in the sandbox: (paths of both forms, properties of the model).

    The weights of a `disposable` message may be moved out of it, which saves a copy.
    """
    reference = OnnxReference()
    path = model if isinstance(model, Path) else _write(model, reference.directory / "given.onnx", disposable)
    del model
    try:
        return reference, sandbox.call(
            "prepare",
            model=str(path),
            workdir=str(reference.directory),
            shapes=dict(shapes),
            constants=dict(constants),
        )
    except ModelError as error:
        if type(error) is ModelError and "ONNX Runtime" in str(error):
            _explain_by_operators(path, error)
        raise
    finally:
        if path.parent == reference.directory:
            for file in reference.directory.glob("given.onnx*"):
                file.unlink()


def load_onnx(
    model: Path | onnx.ModelProto,
    *,
    name: str,
    source: str,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, float] | None = None,
    disposable: bool = False,
) -> Model:
    """Clean the model, then import it. See `slipstream.frontends.load_model`."""
    shapes, constants = dict(shapes or {}), dict(constants or {})
    reference, prepared = clean_onnx(model, shapes, constants, disposable)
    del model
    clean = onnx.load(str(reference.clean_path))
    _refuse_unsupported(clean, prepared["refused"])
    module = _import(clean)
    _refuse_dynamic(module)
    return Model(
        name=name,
        source=source,
        module=module,
        inputs=tuple(TensorSpec(n, tuple(shape), dtype, limit) for n, shape, dtype, limit in prepared["inputs"]),
        outputs=_outputs(module, prepared["outputs"]),
        fingerprint=prepared["fingerprint"],
        reference=reference,
        options={"shapes": shapes, "constants": constants},
    )


def _write(model: onnx.ModelProto, path: Path, disposable: bool) -> Path:
    try:
        if disposable:
            save(model, path)
        else:
            path.write_bytes(model.SerializeToString())
    except Exception as error:
        raise ModelError(f"the ONNX model cannot be written: {error}") from error
    return path


def _explain_by_operators(path: Path, error: ModelError) -> None:
    """When ONNX Runtime refuses a model, unknown operators are the likeliest reason."""
    try:
        unsupported = _unsupported(onnx.load(str(path), load_external_data=False), before_rewriting=True)
    except Exception:  # the file is too damaged to say more than ONNX Runtime said
        return
    if unsupported:
        raise UnsupportedModelError(_complaint(unsupported)) from error


def _refuse_unsupported(model: onnx.ModelProto, reasons: Mapping[str, str]) -> None:
    """`reasons` why nodes could not be rewritten, by their first outputs."""
    unsupported = _unsupported(model)
    if unsupported:
        for node in model.graph.node:
            if node.output[0] in reasons and _unsupported_name(node) in unsupported:
                raise UnsupportedModelError(reasons[node.output[0]])
        raise UnsupportedModelError(_complaint(unsupported))
    small = _small_types(model.graph)
    if small:
        raise UnsupportedModelError(f"the model holds tensors of type {small[0]}, which cannot be compiled")
    data_dependent = [node.op_type for node in _nodes(model.graph) if node.op_type in _DATA_DEPENDENT]
    if data_dependent:
        raise UnsupportedModelError(_data_dependent(data_dependent[0]))


def _small_types(graph: onnx.GraphProto) -> list[str]:
    """Floats of 8 bits and types of fewer, which TVM computes differently or not at all."""
    types = {tensor.data_type for tensor in graph.initializer}
    types |= {value.type.tensor_type.elem_type for value in [*graph.input, *graph.output, *graph.value_info]}
    types |= {a.i for node in _nodes(graph) if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    names = [onnx.TensorProto.DataType.Name(type_) for type_ in sorted(types)]
    return [
        name.lower() for name in names if name.startswith("FLOAT8") or name.endswith(("INT4", "INT2", "FLOAT4E2M1"))
    ]


def _complaint(unsupported: Counter[str]) -> str:
    listed = ", ".join(f"{what} ({n} node{'s' if n > 1 else ''})" for what, n in sorted(unsupported.items()))
    return f"TVM cannot import these operators: {listed}; replace them in the model, or export with another opset"


def _unsupported(model: onnx.ModelProto, before_rewriting: bool = False) -> Counter[str]:
    """Operators without a converter, with how often they occur."""
    from slipstream.frontends.onnx_converters import convert_map
    from slipstream.frontends.onnx_rewrites import REWRITES

    known = convert_map()
    found: Counter[str] = Counter()
    for node in _nodes(model.graph):
        if before_rewriting and (node.domain.removeprefix("ai.onnx"), node.op_type) in REWRITES:
            continue
        if node.domain not in _STANDARD_DOMAINS and (node.domain, node.op_type) not in _IMPORTED:
            found[_unsupported_name(node)] += 1
        elif node.op_type not in known and node.op_type not in ("If", "Constant"):
            found[node.op_type] += 1
    return found


def _unsupported_name(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in _STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, those inside control flow included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _nodes(inner)


def _import(model: onnx.ModelProto) -> Any:
    from tvm.relax.frontend.onnx import from_onnx

    from slipstream.frontends.onnx_converters import our_converters

    printed = io.StringIO()
    try:
        with our_converters(), contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return from_onnx(model)
    except Exception as error:
        raise UnsupportedModelError(_import_failure(error, printed.getvalue())) from error


def _import_failure(error: Exception, printed: str) -> str:
    match = re.search(r"Error converting operator (\w+)", printed)
    where = f" at operator {match[1]}" if match else ""
    said = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__).strip()
    if any(text in said for text in _DYNAMIC_SHAPE_MESSAGES):
        return (
            f"TVM cannot import this model{where}: a shape in it depends on the data at run time ({said}); "
            "fix all input shapes with --shape, or bind configuration inputs with --constant"
        )
    return f"TVM cannot import this model{where}: {said}"


def _refuse_dynamic(module: Any) -> None:
    """Sizes that only the data decides (NonZero, NonMaxSuppression) cannot be scheduled."""
    from tvm import relax, tirx

    def is_static(type_: Any) -> bool:
        if isinstance(type_, relax.TupleType):
            return all(is_static(field) for field in type_.fields)
        if not isinstance(type_, relax.TensorType):
            return True
        return type_.shape is not None and all(isinstance(extent, tirx.IntImm) for extent in type_.shape)

    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, relax.Call) and not is_static(value.ty):
            found.append(str(getattr(value.op, "name", "a function")).removeprefix("relax."))

    relax.analysis.post_order_visit(module["main"], look)
    if found:
        raise UnsupportedModelError(_data_dependent(found[0]))


def _data_dependent(operator: str) -> str:
    return (
        f"the size of a result of {operator} depends on the data: only models of static shapes can be compiled; "
        "cut the model off before it, and do such post-processing outside"
    )


def _outputs(module: Any, names: Sequence[str]) -> tuple[TensorSpec, ...]:
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
