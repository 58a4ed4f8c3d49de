"""`slipstream.load`: an artifact directory → something to call."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.artifact.directory import artifact_in
from slipstream.artifact.manifest import WEIGHTS, Manifest, WeightSpec, checksum
from slipstream.artifact.runtime import Executor, Outputs
from slipstream.artifact.weights import map_weights
from slipstream.errors import ArtifactError
from slipstream.frontends.inputs import TensorSpec
from slipstream.native_output import quiet_native_code
from slipstream.target import lacking_features


class CompiledModel:
    """A compiled model, ready to run. Call it with its inputs; `manifest` says where it came from."""

    def __init__(self, directory: Path, manifest: Manifest, executor: Executor) -> None:
        self.directory = directory
        self.manifest = manifest
        self._executor = executor

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.manifest.outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        """Run the model; see `Executor.__call__` for what it takes."""
        return self._executor(*args, **kwargs)

    def __repr__(self) -> str:
        return f"CompiledModel({self.manifest.model!r}, inputs=[{', '.join(map(str, self.inputs))}])"


def load(directory: str | Path, *, threads: int | None = None) -> CompiledModel:
    """Load what `compile` or `tune` wrote. `threads` defaults to every core this process may use."""
    directory = artifact_in(Path(directory))
    manifest = Manifest.read(directory)
    _check_machine(directory, manifest)
    _check_files(directory, manifest)
    executor = open_executor(directory, manifest.library, manifest.weights, manifest.inputs, manifest.outputs, threads)
    return CompiledModel(directory, manifest, executor)


def open_executor(
    directory: Path,
    library: str,
    weights: Sequence[WeightSpec],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    threads: int | None,
) -> Executor:
    """The code and the weights in `directory`, ready to be called."""
    import tvm

    try:
        with quiet_native_code():
            executable = tvm.runtime.load_module(str(directory / library))
        mapped = map_weights(directory / WEIGHTS, weights)
    except (OSError, RuntimeError, ValueError) as error:
        raise ArtifactError(f"{directory} is damaged ({error}): compile the model again") from error
    return Executor(executable, mapped, inputs, outputs, threads)


def _check_machine(directory: Path, manifest: Manifest) -> None:
    if manifest.architecture != platform.machine():
        raise ArtifactError(
            f"{directory} was compiled for {manifest.architecture}, this machine is {platform.machine()}: "
            "compile the model on a machine like this one"
        )
    missing = lacking_features(manifest.features)
    if missing:
        raise ArtifactError(
            f"{directory} was compiled for {manifest.cpu}, this CPU lacks {', '.join(missing)}: "
            "compile the model here, or with --target cpu:NAME for an older CPU"
        )


def _check_files(directory: Path, manifest: Manifest) -> None:
    for name, expected in manifest.checksums.items():
        path = directory / name
        if not path.is_file():
            raise ArtifactError(f"{directory} is damaged ({name} is missing): compile the model again")
        if checksum(path) != expected:
            raise ArtifactError(f"{directory} is damaged ({name} has changed): compile the model again")
