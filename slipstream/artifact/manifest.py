"""What an artifact says about itself, in `manifest.json`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slipstream.errors import ArtifactError
from slipstream.frontends.inputs import TensorSpec
from slipstream.runtime.library import POOL

FORMAT = 1
FILE_NAME = "manifest.json"
WEIGHTS = "weights.bin"


@dataclass(frozen=True)
class WeightSpec:
    """One tensor in `weights.bin`."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class OutputCheck:
    """How far one output was from the reference, at worst over all seeds."""

    name: str
    max_absolute: float
    max_relative: float
    tolerance: float


@dataclass(frozen=True)
class Verification:
    """What was compared before the artifact was written."""

    reference: str
    seeds: int
    outputs: tuple[OutputCheck, ...]


@dataclass(frozen=True)
class Manifest:
    """Everything needed to load, call and trust an artifact without the tuner."""

    model: str
    source: str
    options: dict[str, Any]
    fingerprint: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    architecture: str
    cpu: str
    features: tuple[str, ...]
    threads: int
    versions: dict[str, str]
    verification: Verification | None
    library: str
    weights: tuple[WeightSpec, ...]
    checksums: dict[str, str]
    tuned: dict[str, Any] = field(default_factory=dict)
    gpu: str = ""  # the GPU's architecture, such as sm_90; nothing for a CPU
    dtype: str = "float32"  # what a float32 model's products are computed in
    prefix: str = ""  # of the functions of a library that runs by itself; without one TVM's runtime runs it
    format: int = FORMAT

    def write(self, directory: Path) -> None:
        (directory / FILE_NAME).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read and check; every way this can go wrong is an `ArtifactError` that says what to do."""
        path = directory / FILE_NAME
        if not directory.is_dir():
            raise ArtifactError(f"there is no directory {directory}: make one with 'slipstream compile MODEL -o DIR'")
        if not path.is_file():
            raise ArtifactError(f"{directory} is not a compiled model: it has no {FILE_NAME}")
        try:
            return cls._from_json(json.loads(path.read_text()))
        except ArtifactError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
            raise ArtifactError(f"{path} is damaged ({error}): compile the model again") from error

    @classmethod
    def _from_json(cls, data: dict[str, Any]) -> Manifest:
        if data["format"] != FORMAT:
            raise ArtifactError(
                f"the artifact has format {data['format']}, this Slipstream reads format {FORMAT}: compile it again"
            )
        library = data["library"]
        if library in ("", "..") or Path(library).name != library:
            raise ValueError(f"its library {library!r} is not a file of this directory")
        prefix = data.get("prefix", "")
        if prefix and not (prefix.isascii() and prefix.isidentifier()):
            raise ValueError(f"its prefix {prefix!r} is no name of C")
        files = {library, WEIGHTS, *([POOL] if prefix else [])}
        if data["checksums"].keys() != files:
            raise ValueError(f"its checksums have to be those of {', '.join(sorted(files))}")
        checked = data["verification"]
        return cls(
            **{
                **data,
                "inputs": tuple(_tensor(spec) for spec in data["inputs"]),
                "outputs": tuple(_tensor(spec) for spec in data["outputs"]),
                "features": tuple(data["features"]),
                "weights": tuple(WeightSpec(w["dtype"], tuple(w["shape"]), w["offset"]) for w in data["weights"]),
                "verification": checked
                and Verification(
                    checked["reference"],
                    checked["seeds"],
                    tuple(OutputCheck(**o) for o in checked["outputs"]),
                ),
            }
        )


def _tensor(spec: dict[str, Any]) -> TensorSpec:
    return TensorSpec(spec["name"], tuple(spec["shape"]), spec["dtype"], spec["limit"])


def checksum(path: Path) -> str:
    """A digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
