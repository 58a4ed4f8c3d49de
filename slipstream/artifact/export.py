"""`slipstream.export`: a compiled model as files for a program in C or C++, without Python and without TVM."""

from __future__ import annotations

import shutil
from pathlib import Path

from slipstream.artifact.directory import artifact_in
from slipstream.artifact.loaded import check_artifact
from slipstream.artifact.manifest import WEIGHTS, Manifest
from slipstream.errors import ArtifactError
from slipstream.runtime.link import NATIVE
from slipstream.runtime.source import header


def export(directory: str | Path, output: str | Path) -> list[Path]:
    """Write library, weights, header, an example and its CMake file into the new directory `output`; the files.

    A model for several shapes has a library and a header for each, and one file of weights; the example runs the first.
    """
    directory, output = artifact_in(Path(directory)), Path(output)
    manifest = check_artifact(directory)
    for own in manifest.single_shapes:
        _check_runs_alone(directory, own)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ArtifactError(f"{output} exists and is not an empty directory: choose another -o")
    output.mkdir(parents=True, exist_ok=True)
    for own in manifest.single_shapes:
        shutil.copyfile(directory / own.library, output / f"lib{own.prefix}.so")
        (output / f"{own.prefix}.h").write_text(header(own.prefix, own.inputs, own.outputs))
    for name in (manifest.pool, WEIGHTS):
        shutil.copyfile(directory / name, output / name)
    prefix = manifest.single_shapes[0].prefix
    for name in ("main.c", "CMakeLists.txt"):
        (output / name).write_text((NATIVE / f"{name}.in").read_text().replace("@PREFIX@", prefix))
    return sorted(output.iterdir())


def _check_runs_alone(directory: Path, manifest: Manifest) -> None:
    """Raises if a model of one shape needs more than its library and the thread pool."""
    if manifest.parts:
        reasons = "; ".join(reason for part in manifest.parts for reason in part.reasons)
        raise ArtifactError(
            f"{directory} cannot run without ONNX Runtime ({reasons}): use slipstream.load in Python, or cut the model "
            "off before these nodes"
        )
    if not manifest.prefix:
        why = "a model for a GPU" if manifest.gpu else "it calls functions of TVM's runtime"
        raise ArtifactError(f"{directory} cannot run without TVM ({why}): use slipstream.load in Python")
