"""Importers: they turn ONNX files, PyTorch programs and models of the built-in zoo into a `Model`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.errors import ModelError
from slipstream.frontends.inputs import Array, TensorSpec, random_inputs
from slipstream.frontends.model import Model, Reference
from slipstream.frontends.shape_lists import Shapes, shape_sets
from slipstream.frontends.shape_variants import combine, fit_arrays

__all__ = ["Model", "Reference", "TensorSpec", "load_model", "random_inputs"]

_ZOO = "zoo:"


def load_model(
    model: Any,
    *,
    example_inputs: Sequence[Any] | None = None,
    shapes: Shapes | None = None,
    constants: Mapping[str, float] | None = None,
    partition: bool = True,
    input_data: Mapping[str, Array] | None = None,
) -> Model:
    """Read and import a model.

    `model` is a path to an ONNX file or a saved `.pt2`, a zoo name (`zoo:resnet18`), an `onnx.ModelProto`, a
    `torch.export.ExportedProgram`, or a `torch.nn.Module` together with `example_inputs`. `shapes` fixes
    dynamic inputs; where it has several shapes (`slipstream.frontends.shape_lists`), so has the result. `constants`
    turns inputs of an ONNX model, such as a sample rate, into constants. What of an ONNX model cannot be compiled is
    left to ONNX Runtime, as a part of its own; without `partition` such a model is an error. `input_data` are inputs to
    run the model on; without them they are random; they are repeated or cut to each of several shapes.
    """
    sets = shape_sets(shapes)
    data: list[Mapping[str, Array] | None] = [input_data] * len(sets)
    if len(sets) > 1 and input_data:
        named = [tuple(TensorSpec(name, tuple(shape), "") for name, shape in one.items()) for one in sets]
        data = [fit_arrays(input_data, specs) for specs in named]
    return combine(
        [
            _load(
                model, example_inputs, {"shapes": one, "constants": constants, "partition": partition, "input_data": d}
            )
            for one, d in zip(sets, data, strict=True)
        ]
    )


def _load(model: Any, example_inputs: Sequence[Any] | None, for_onnx: dict[str, Any]) -> Model:
    """The model at one shape."""
    shapes = for_onnx["shapes"]
    if isinstance(model, str) and model.startswith(_ZOO):
        return _load_zoo(model, for_onnx)
    if isinstance(model, str | Path):
        return _load_file(Path(model), for_onnx)
    kind = type(model).__module__.partition(".")[0]
    if kind == "onnx":
        from slipstream.frontends.onnx_import import load_onnx

        name = model.graph.name or "model"
        return load_onnx(model, name=name, source="memory", **for_onnx)
    from slipstream.frontends import torch_export

    if for_onnx["constants"]:
        raise ModelError("constants are for ONNX models: a PyTorch model has them in its code")
    return torch_export.load_torch(model, example_inputs, shapes)


def _load_zoo(spec: str, for_onnx: dict[str, Any]) -> Model:
    from slipstream.frontends import zoo
    from slipstream.frontends.onnx_import import load_onnx

    name = spec.removeprefix(_ZOO)
    model = zoo.build(name)
    return load_onnx(model, name=name, source=spec, disposable=True, **for_onnx)


def _load_file(path: Path, for_onnx: dict[str, Any]) -> Model:
    if not path.exists():
        raise ModelError(f"there is no file {path}: give an ONNX file, a .pt2, or a zoo name such as zoo:resnet18")
    if path.is_dir():
        raise ModelError(f"{path} is a directory: give the model file inside it")
    if not os.access(path, os.R_OK):
        raise ModelError(f"cannot read {path}: Permission denied")
    source = str(path.absolute())
    if path.suffix == ".pt2":
        from slipstream.frontends import torch_export

        return torch_export.load_pt2(path, for_onnx["shapes"])
    from slipstream.frontends.onnx_import import load_onnx

    return load_onnx(path, name=path.stem, source=source, **for_onnx)
