"""`slipstream.export`: a compiled model as files for a program in C or C++, without Python and without TVM."""

from __future__ import annotations

import shutil
from pathlib import Path

from slipstream.artifact.directory import artifact_in
from slipstream.artifact.loaded import check_artifact
from slipstream.artifact.manifest import WEIGHTS
from slipstream.errors import ArtifactError
from slipstream.runtime.library import POOL
from slipstream.runtime.link import NATIVE
from slipstream.runtime.source import header


def export(directory: str | Path, output: str | Path) -> list[Path]:
    """Write library, weights, header, an example and its CMake file into the new directory `output`; the files."""
    directory, output = artifact_in(Path(directory)), Path(output)
    manifest = check_artifact(directory)
    if manifest.parts:
        reasons = "; ".join(reason for part in manifest.parts for reason in part.reasons)
        raise ArtifactError(
            f"{directory} cannot run without ONNX Runtime ({reasons}): use slipstream.load in Python, or cut the model "
            "off before these nodes"
        )
    if not manifest.prefix:
        why = "a model for a GPU" if manifest.gpu else "it calls functions of TVM's runtime"
        raise ArtifactError(f"{directory} cannot run without TVM ({why}): use slipstream.load in Python")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ArtifactError(f"{output} exists and is not an empty directory: choose another -o")
    output.mkdir(parents=True, exist_ok=True)
    prefix = manifest.prefix
    shutil.copyfile(directory / manifest.library, output / f"lib{prefix}.so")
    for name in (POOL, WEIGHTS):
        shutil.copyfile(directory / name, output / name)
    (output / f"{prefix}.h").write_text(header(prefix, manifest.inputs, manifest.outputs))
    for name in ("main.c", "CMakeLists.txt"):
        (output / name).write_text((NATIVE / f"{name}.in").read_text().replace("@PREFIX@", prefix))
    return sorted(output.iterdir())
