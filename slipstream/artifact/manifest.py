"""What an artifact says about itself, in `manifest.json`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from slipstream.errors import ArtifactError, ShapeError
from slipstream.frontends.inputs import TensorSpec
from slipstream.frontends.shape_variants import merged_specs, shape_labels
from slipstream.runtime.library import POOL, POOL_NAME

FORMAT = 1
FILE_NAME = "manifest.json"
WEIGHTS = "weights.bin"
INPUTS = "inputs.npz"


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
    notes: tuple[str, ...] = ()  # what was given up for it to pass, a line each


@dataclass(frozen=True)
class Part:
    """Nodes of the model in files of their own: a compiled library with its weights, or an ONNX file.

    `reasons` say what of an ONNX part cannot be compiled.
    """

    name: str
    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: int = 0
    reasons: tuple[str, ...] = ()
    weights_file: str = ""  # nothing for an ONNX part
    weights: tuple[WeightSpec, ...] = ()
    prefix: str = ""
    step_threads: tuple[int, ...] = ()  # at most so many for each call of an operator, in their order

    @property
    def is_compiled(self) -> bool:
        return bool(self.weights_file)


@dataclass(frozen=True)
class BuildChoices:
    """What was decided while a model was built for one shape: with the same programs, equal choices give equal code.

    `step_threads` are those of each compiled part.
    """

    exact_operators: tuple[str, ...] = ()
    exact_functions: bool = False
    step_threads: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Variant:
    """A model at one of several shapes; `parts` is the whole model as one, or what it was cut into."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    options: dict[str, Any]
    fingerprint: str
    verification: Verification | None
    parts: tuple[Part, ...]
    exact_operators: tuple[str, ...] = ()  # keys of those in their exact form
    exact_functions: bool = False  # exp and similar ones are


@dataclass(frozen=True)
class Manifest:
    """Everything needed to load, call and trust an artifact without the tuner.

    A model that was cut has no `library` of its own but `parts`, in the order in which they run. One for several shapes
    has neither but `variants`; dimensions in which these differ are -1 in `inputs` and `outputs`.
    """

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
    parts: tuple[Part, ...] = ()
    input_data: str = ""  # the file of inputs that were given to run the model on; nothing if they are random
    step_threads: tuple[int, ...] = ()
    exact_operators: tuple[str, ...] = ()  # of a model of one shape, as of a variant
    exact_functions: bool = False
    variants: tuple[Variant, ...] = ()
    pad: bool = False  # inputs of a shape that is not there are filled up with zeros to a larger one
    format: int = FORMAT

    @property
    def single_shapes(self) -> tuple[Manifest, ...]:
        """What the artifact would say of itself if it had only that shape, for each shape."""
        return tuple(self._with_only(variant) for variant in self.variants) or (self,)

    def _with_only(self, variant: Variant) -> Manifest:
        own = {f.name: getattr(variant, f.name) for f in fields(variant)}
        if len(variant.parts) == 1:
            (whole,) = variant.parts
            own |= {"library": whole.file, "weights": whole.weights, "prefix": whole.prefix, "parts": ()}
            own["step_threads"] = whole.step_threads
        return replace(self, **own, variants=(), pad=False)

    @property
    def pool(self) -> str:
        """The file of the thread pool that its libraries were linked with."""
        return next((name for name in self.checksums if name.startswith(POOL_NAME)), POOL)

    @property
    def runs_alone(self) -> bool:
        """Whether it runs without TVM."""
        return all(part.prefix for part in self.all_parts if part.is_compiled)

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """The parts of a model that was cut, or the whole as one; of all variants, one after the other."""
        if self.variants:
            return tuple(part for variant in self.variants for part in variant.parts)
        if self.parts:
            return self.parts
        files = (WEIGHTS, self.weights, self.prefix, self.step_threads)
        return (Part(self.model, self.library, self.inputs, self.outputs, 0, (), *files),)

    @property
    def shape_labels(self) -> list[str]:
        """What people read of each of its shapes; nothing for the only one."""
        return shape_labels([own.inputs for own in self.single_shapes])

    @property
    def choices(self) -> dict[str, BuildChoices]:
        """By label of the shape."""
        return {label: own._own_choices() for label, own in zip(self.shape_labels, self.single_shapes, strict=True)}

    def _own_choices(self) -> BuildChoices:
        threads = tuple(part.step_threads for part in self.all_parts if part.is_compiled)
        return BuildChoices(self.exact_operators, self.exact_functions, threads)

    def write(self, directory: Path) -> None:
        (directory / FILE_NAME).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read and check; every way this can go wrong is an `ArtifactError` that says what to do."""
        path = directory / FILE_NAME
        if not directory.is_dir():
            raise ArtifactError(f"there is no directory {directory}: make one with 'slipstream compile MODEL -o DIR'")
        if not path.is_file():
            inside = sorted(str(file.parent) for file in directory.glob(f"*/{FILE_NAME}"))
            if inside and not (directory / "model" / FILE_NAME).is_file():
                raise ArtifactError(f"{directory} is no compiled model but has some in it: give {' or '.join(inside)}")
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
        manifest = cls(
            **{
                **data,
                "inputs": _tensors(data["inputs"]),
                "outputs": _tensors(data["outputs"]),
                "features": tuple(data["features"]),
                "weights": _weights(data["weights"]),
                "parts": tuple(_part(part) for part in data.get("parts", ())),
                "step_threads": tuple(data.get("step_threads", ())),
                "exact_operators": tuple(data.get("exact_operators", ())),
                "verification": _verification(data["verification"]),
                "variants": tuple(_variant(variant) for variant in data.get("variants", ())),
            }
        )
        manifest._check()
        return manifest

    def _check(self) -> None:
        """Raises `ValueError` if something in it cannot be, such as other files than those it has checksums of."""
        if type(self.threads) is not int or self.threads < 1:
            raise ValueError(f"{self.threads} is no number of threads")
        if not all(isinstance(feature, str) for feature in self.features):
            raise ValueError(f"{self.features} are no features of a CPU")
        if self.variants:
            self._check_variants()
        files = {self.input_data} if self.input_data else set()
        for part in self.all_parts:
            files |= {
                part.file,
                *([part.weights_file] if part.is_compiled else []),
                *([self.pool] if part.prefix else []),
            }
            if part.prefix and not (part.prefix.isascii() and part.prefix.isidentifier()):
                raise ValueError(f"its prefix {part.prefix!r} is no name of C")
        for name in (*files, *self.checksums):
            if name in ("", "..") or Path(name).name != name:
                raise ValueError(f"its file {name!r} is not a file of this directory")
        # The weights of a large ONNX part are in a file beside it.
        beside = {f"{part.file}.data" for part in self.all_parts if not part.is_compiled}
        if self.checksums.keys() - beside != files:
            raise ValueError(f"its checksums have to be those of {', '.join(sorted(files))}")

    def _check_variants(self) -> None:
        try:
            inputs = merged_specs([variant.inputs for variant in self.variants], "input")
            outputs = merged_specs([variant.outputs for variant in self.variants], "output")
        except ShapeError as error:
            raise ValueError(str(error)) from None
        if (inputs, outputs) != (self.inputs, self.outputs):
            raise ValueError("its variants have other inputs or outputs than it")


def _variant(variant: dict[str, Any]) -> Variant:
    return Variant(
        **{
            **variant,
            "inputs": _tensors(variant["inputs"]),
            "outputs": _tensors(variant["outputs"]),
            "verification": _verification(variant["verification"]),
            "parts": tuple(_part(part) for part in variant["parts"]),
            "exact_operators": tuple(variant.get("exact_operators", ())),
        }
    )


def _verification(checked: dict[str, Any] | None) -> Verification | None:
    return checked and Verification(  # type: ignore[return-value]
        checked["reference"],
        checked["seeds"],
        tuple(OutputCheck(**o) for o in checked["outputs"]),
        tuple(checked.get("notes", ())),
    )


def _part(part: dict[str, Any]) -> Part:
    return Part(
        **{
            **part,
            "inputs": _tensors(part["inputs"]),
            "outputs": _tensors(part["outputs"]),
            "reasons": tuple(part["reasons"]),
            "weights": _weights(part["weights"]),
            "step_threads": tuple(part.get("step_threads", ())),
        }
    )


def _weights(specs: list[dict[str, Any]]) -> tuple[WeightSpec, ...]:
    return tuple(WeightSpec(spec["dtype"], tuple(spec["shape"]), spec["offset"]) for spec in specs)


def _tensors(specs: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(_tensor(spec) for spec in specs)


def _tensor(spec: dict[str, Any]) -> TensorSpec:
    name, shape, dtype = spec["name"], tuple(spec["shape"]), spec["dtype"]
    if not (isinstance(name, str) and isinstance(dtype, str) and all(type(extent) is int for extent in shape)):
        raise ValueError(f"{spec} is no tensor")
    return TensorSpec(name, shape, dtype, spec["limit"])


def checksum(path: Path) -> str:
    """A digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
