"""`slipstream.load`: an artifact directory → something to call."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.artifact.directory import artifact_in, is_set_aside
from slipstream.artifact.manifest import FILE_NAME, Manifest, Part, checksum
from slipstream.artifact.partitioned import PartitionedExecutor
from slipstream.artifact.runtime import Executor, LibraryExecutor, Outputs, TvmExecutor
from slipstream.artifact.shape_dispatch import ShapeDispatcher
from slipstream.artifact.weights import map_weights
from slipstream.errors import ArtifactError, MissingDependencyError, SlipstreamError
from slipstream.frontends.archives import read_archive
from slipstream.frontends.inputs import Array, TensorSpec, feed_of
from slipstream.frontends.shape_variants import fit_arrays
from slipstream.machine.cuda import find_device
from slipstream.machine.mounts import is_noexec
from slipstream.machine.target import available_cores, lacking_features
from slipstream.runtime.library import ModelLibrary
from slipstream.runtime.onnx_session import OnnxSession
from slipstream.tvm_bridge.native_output import quiet_native_code

# An artifact may be replaced while it is loaded.
_ATTEMPTS = 3
_REPLACE_SECONDS = 0.1


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

    @property
    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """The shapes of the inputs by name, for each variant of the model."""
        return [{spec.name: spec.shape for spec in own.inputs} for own in self.manifest.single_shapes]

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        """Run the model; see `Executor.__call__` for what it takes."""
        return self._executor(*args, **kwargs)

    def on_device(self, *args: Any, **kwargs: Any) -> Callable[[], Outputs]:
        """A call of the model on these inputs with nothing to copy; see `Executor.on_device`."""
        return self._executor.on_device(*args, **kwargs)

    def close(self) -> None:
        """Give back the model's memory; it cannot be called afterwards. With the last model its threads end."""
        self._executor.close()

    def __enter__(self) -> CompiledModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shapes = f", {len(self.shapes)} shapes" if self.manifest.variants else ""
        return f"CompiledModel({self.manifest.model!r}, inputs=[{', '.join(map(str, self.inputs))}]{shapes})"


def load(directory: str | Path, *, threads: int | None = None, pad: bool | None = None) -> CompiledModel:
    """Load what `compile` or `tune` wrote. `threads` defaults to what the model was compiled for, or to the cores that
    this process may use if these are fewer. `pad=False` refuses inputs that a model would fill up to a larger shape."""
    for attempt in range(_ATTEMPTS):
        before = _stamp(Path(directory))
        try:
            model = _load(artifact_in(Path(directory)), threads, pad)
        except SlipstreamError:
            if attempt == _ATTEMPTS - 1 or not _was_replaced(Path(directory), before):
                raise
        else:
            if _stamp(Path(directory)) == before:
                return model
            model.close()  # its code may be of one artifact and its weights of another
    raise ArtifactError(f"{directory} is replaced again and again: load it when that has ended")


def _stamp(directory: Path) -> tuple[int, ...] | None:
    """What tells an artifact from the one that takes its place; None if there is none."""
    try:
        manifest = (artifact_in(directory) / FILE_NAME).stat()
    except OSError:
        return None
    return manifest.st_dev, manifest.st_ino, manifest.st_mtime_ns


def _was_replaced(directory: Path, before: tuple[int, ...] | None) -> bool:
    """Whether an artifact is no longer the one of `before`; where it is just being replaced, after a moment."""
    if is_set_aside(directory) or is_set_aside(directory / "model"):
        time.sleep(_REPLACE_SECONDS)
    return _stamp(directory) != before


def _load(directory: Path, threads: int | None, pad: bool | None) -> CompiledModel:
    manifest = check_artifact(directory)
    if pad and not manifest.pad:
        raise ArtifactError(f"{directory} does not fill inputs up: compile it with several shapes and --pad")
    threads = min(threads or manifest.threads, available_cores())
    opened: list[Executor] = []
    try:
        for own in manifest.single_shapes:
            opened.append(open_parts(directory, own.all_parts, own.inputs, own.outputs, threads, manifest.gpu))
    except BaseException:
        for executor in opened:
            executor.close()
        raise
    if not manifest.variants:
        return CompiledModel(directory, manifest, opened[0])
    dispatcher = ShapeDispatcher(opened, manifest.inputs, manifest.outputs, manifest.pad and pad is not False)
    return CompiledModel(directory, manifest, dispatcher)


def example_inputs(directory: Path, manifest: Manifest, seed: int = 0) -> dict[str, Array]:
    """Inputs to run the artifact, of one shape, on: those it was compiled with and, for what these do not name, random
    ones."""
    given: dict[str, Array] = {}
    if manifest.input_data:
        given = fit_arrays(read_archive(artifact_in(directory) / manifest.input_data), manifest.inputs)
    return feed_of(manifest.inputs, given, np.random.default_rng(seed))


def check_artifact(directory: Path) -> Manifest:
    """The manifest of an artifact that is whole and that this machine can run."""
    manifest = Manifest.read(directory)
    _check_machine(directory, manifest)
    _check_files(directory, manifest)
    return manifest


def open_parts(
    directory: Path,
    parts: Sequence[Part],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    threads: int,
    gpu: str = "",
) -> Executor:
    """A model of these parts in `directory`, ready to be called."""
    if len(parts) == 1 and parts[0].is_compiled:
        return _open_compiled(directory, parts[0], threads, gpu)
    opened: list[tuple[Part, Executor | OnnxSession]] = []
    try:
        for part in parts:
            compiled = part.is_compiled
            run = _open_compiled(directory, part, threads, gpu) if compiled else _open_onnx(directory, part, threads)
            opened.append((part, run))
    except BaseException:
        for _, run in opened:
            run.close()
        raise
    return PartitionedExecutor(opened, inputs, outputs)


def _open_onnx(directory: Path, part: Part, threads: int) -> OnnxSession:
    try:
        return OnnxSession(directory / part.file, [output.name for output in part.outputs], threads)
    except ImportError as error:
        raise MissingDependencyError(
            f"{part.nodes} nodes of this model run in ONNX Runtime, which is not installed: pip install onnxruntime"
        ) from error
    except Exception as error:
        raise ArtifactError(f"{directory} is damaged ({part.file}: {error}): compile the model again") from error


def _open_compiled(directory: Path, part: Part, threads: int, gpu: str = "") -> Executor:
    """The code and the weights of a part in `directory`, ready to be called."""
    inputs, outputs, weights = part.inputs, part.outputs, directory / part.weights_file
    if part.prefix:
        try:
            library = ModelLibrary(directory / part.file, part.prefix, weights, outputs, threads)
        except (OSError, AttributeError) as error:
            raise _not_loaded(directory, error) from error
        return LibraryExecutor(library, inputs, outputs)
    import tvm

    if gpu:
        _check_gpu(directory, gpu)
    try:
        with quiet_native_code():
            executable = tvm.runtime.load_module(str((directory / part.file).absolute()))
        mapped = map_weights(weights, part.weights)
    except (OSError, RuntimeError, ValueError) as error:
        raise _not_loaded(directory, error) from error
    return TvmExecutor(executable, mapped, inputs, outputs, threads, tvm.cuda() if gpu else tvm.cpu())


def _not_loaded(directory: Path, error: Exception) -> ArtifactError:
    if is_noexec(directory):
        return ArtifactError(
            f"{directory} is on a file system that is mounted noexec, from which no code can be loaded: "
            "copy it to another one, or have this one mounted without noexec"
        )
    return ArtifactError(f"{directory} is damaged ({error}): compile the model again")


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


def _check_gpu(directory: Path, architecture: str) -> None:
    """Machine code runs on its own architecture and on later minor versions of it."""
    from slipstream.machine.cuda_libraries import load_runtime

    device = find_device()
    if device is None or not load_runtime():
        missing = "no NVIDIA GPU answers here" if device is None else "the CUDA runtime is not found"
        raise ArtifactError(
            f"{directory} was compiled for a GPU ({architecture}) and {missing}: run it on a machine with such a GPU, "
            "NVIDIA's driver and pip install 'slipstream[cuda]', or compile the model with --target cpu"
        )
    if device.architecture[:-1] != architecture[:-1] or device.architecture[-1] < architecture[-1]:
        raise ArtifactError(
            f"{directory} was compiled for {architecture}, this machine's {device.name} is {device.architecture}: "
            "compile the model here"
        )


def _check_files(directory: Path, manifest: Manifest) -> None:
    for name, expected in manifest.checksums.items():
        path = directory / name
        if not path.is_file():
            raise ArtifactError(f"{directory} is damaged ({name} is missing): compile the model again")
        try:
            found = checksum(path)
        except OSError as error:
            raise ArtifactError(f"{directory} cannot be read ({error}): repair this, or compile it again") from error
        if found != expected:
            raise ArtifactError(f"{directory} is damaged ({name} has changed): compile the model again")
