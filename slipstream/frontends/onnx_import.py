"""ONNX files and messages → `Model`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from slipstream.errors import ModelError, UnsupportedModelError
from slipstream.frontends import sandbox
from slipstream.frontends.archives import write_archive
from slipstream.frontends.inputs import Array, TensorSpec, feed_of
from slipstream.frontends.model import CompiledPart, Model, OnnxPart
from slipstream.frontends.onnx_files import save
from slipstream.frontends.onnx_graph import NodeRefusedError, import_graph, known_refusals, outputs_of, refused_at
from slipstream.frontends.onnx_partition import import_parts
from slipstream.frontends.onnx_support import refusal_message
from slipstream.frontends.onnx_values import drop_unused
from slipstream.frontends.output_files import read_outputs


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

    def outputs(self, feeds: Sequence[dict[str, Array]]) -> list[list[Any]]:
        return self._run("run", feeds, model=str(self.path))

    def outputs_without_optimisation(self, feeds: Sequence[dict[str, Array]]) -> list[list[Any]]:
        """The same computed in another way: how far the two differ is how exact the model can be."""
        return self._run("run", feeds, model=str(self.path), optimise=False)

    def values(self, feeds: Sequence[dict[str, Array]], names: Sequence[str]) -> list[dict[str, Any]]:
        """Values of these names inside the simplified model, for each set of inputs."""
        found = self._run("run_values", feeds, model=str(self.clean_path), names=list(names))
        return [dict(zip(names, values, strict=True)) for values in found]

    def _run(self, job: str, feeds: Sequence[dict[str, Array]], **arguments: Any) -> list[list[Any]]:
        with tempfile.TemporaryDirectory(dir=self.directory) as scratch:
            given = [str(Path(scratch, f"in{i}.npz")) for i in range(len(feeds))]
            returned = [str(Path(scratch, f"out{i}.npz")) for i in range(len(feeds))]
            for path, feed in zip(given, feeds, strict=True):
                write_archive(path, feed)
            sandbox.call(job, feeds=given, results=returned, **arguments)
            return [read_outputs(path) for path in returned]


def clean_onnx(
    model: Path | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]],
    constants: Mapping[str, float],
    disposable: bool = False,
    input_data: Mapping[str, Array] | None = None,
) -> tuple[OnnxReference, dict[str, Any]]:
    """Fix and simplify the model in the sandbox: (paths of both forms, properties of the model).

    The weights of a `disposable` message may be moved out of it, which saves a copy. Both forms are run on
    `input_data` and, for inputs that are not in it, on random values.
    """
    reference = OnnxReference()
    path = model if isinstance(model, Path) else _write(model, reference.directory / "given.onnx", disposable)
    del model
    given = reference.directory / "given.npz"
    write_archive(given, input_data or {})
    try:
        return reference, sandbox.call(
            "prepare",
            model=str(path.absolute()),  # the sandbox may have started elsewhere
            workdir=str(reference.directory),
            shapes=dict(shapes),
            constants=dict(constants),
            given=str(given),
        )
    except ModelError as error:
        if type(error) is ModelError and "ONNX Runtime" in str(error):
            _explain_by_operators(path, error)
        raise
    finally:
        if path.parent == reference.directory:
            for file in reference.directory.glob("given.*"):
                file.unlink()


def load_onnx(
    model: Path | onnx.ModelProto,
    *,
    name: str,
    source: str,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, float] | None = None,
    disposable: bool = False,
    partition: bool = True,
    input_data: Mapping[str, Array] | None = None,
) -> Model:
    """Clean the model, then import it. See `slipstream.frontends.load_model`."""
    shapes, constants = dict(shapes or {}), dict(constants or {})
    reference, prepared = clean_onnx(model, shapes, constants, disposable, input_data)
    del model
    inputs = tuple(TensorSpec(n, tuple(shape), dtype, limit) for n, shape, dtype, limit in prepared["inputs"])
    clean = onnx.load(str(reference.clean_path))
    drop_unused(clean.graph)
    refused = known_refusals(clean.graph, prepared["refused"])
    module: Any = None
    parts: tuple[CompiledPart | OnnxPart, ...] = ()
    if not refused:
        try:
            module = import_graph(clean)
        except NodeRefusedError as error:
            refused = refused_at(clean.graph, error)
    if refused and not partition:
        raise UnsupportedModelError(
            f"{refusal_message(clean.graph, refused)}: leave that to ONNX Runtime (no --no-partition), or replace it"
        )
    if refused:
        feeds = feed_of(inputs, input_data or {}, np.random.default_rng(0))
        parts, outputs = import_parts(clean, reference.directory, prepared["outputs"], feeds, refused)
    else:
        outputs = outputs_of(module, prepared["outputs"])
    return Model(
        name=name,
        source=source,
        module=module,
        inputs=inputs,
        outputs=outputs,
        fingerprint=prepared["fingerprint"],
        quantised=prepared["quantised"],
        output_steps=tuple(prepared["output_steps"]),
        reference=reference,
        options={"shapes": shapes, "constants": constants},
        parts=parts,
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
        graph = onnx.load(str(path), load_external_data=False).graph
        unsupported = known_refusals(graph, before_rewriting=True)
    except Exception:  # the file is too damaged to say more than ONNX Runtime said
        return
    if unsupported:
        raise UnsupportedModelError(
            f"{error}; {refusal_message(graph, unsupported)}: replace it, or export with another opset"
        ) from error
