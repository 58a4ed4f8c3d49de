"""Writing an artifact: a model's operators scheduled, built, linked, verified and put in place in one step."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from slipstream.artifact.directory import replace_directory
from slipstream.artifact.loaded import open_parts
from slipstream.artifact.manifest import (
    INPUTS,
    WEIGHTS,
    BuildChoices,
    Manifest,
    Part,
    Variant,
    Verification,
    WeightSpec,
    checksum,
)
from slipstream.artifact.step_threads import choose_step_threads, with_step_threads
from slipstream.artifact.verify import merged, verification_inputs, verify
from slipstream.artifact.weights import WeightsFile
from slipstream.errors import BuildError, SlipstreamError, UnsupportedModelError, VerificationError
from slipstream.frontends import Model
from slipstream.frontends.archives import write_archive
from slipstream.frontends.inputs import Array, random_inputs
from slipstream.frontends.model import CompiledPart, OnnxPart
from slipstream.frontends.shape_variants import fit_arrays, variant_labels
from slipstream.machine.linker import link
from slipstream.machine.target import Target, cpuinfo_words
from slipstream.runtime.library import ModelLibrary
from slipstream.runtime.link import copy_pool, link_model
from slipstream.runtime.plan import Plan
from slipstream.runtime.source import model_source, symbol_prefix
from slipstream.version import VERSION

if TYPE_CHECKING:
    from slipstream.graph.build import BuiltModel
    from slipstream.graph.exact_forms import ExactForms

Progress = Callable[[str], None]
T = TypeVar("T")

# On so few the plan's estimate of how many threads an operator is worth is as good as a measurement.
FEW_THREADS = 4


@contextmanager
def tvm_errors(model: str) -> Iterator[None]:
    """Whatever TVM raises while it works on `model`, as an error of ours."""
    try:
        yield
    except SlipstreamError:
        raise
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise BuildError(f"TVM failed on {model}: {said} (--debug shows where)") from error


def write_artifact(
    model: Model,
    prepared: Callable[[Model, bool], Sequence[Any]],
    target: Target,
    output: Path,
    *,
    program: Callable[[Any], Any] | None = None,
    threads: int | None = None,
    input_data: dict[str, Array] | None = None,
    tuned: dict[str, Any] | None = None,
    pad: bool = False,
    choose_threads: bool = False,
    choices: Mapping[str, BuildChoices] | None = None,
    stage: Progress = lambda stage: None,
) -> Manifest:
    """Schedule and build what has to be compiled of a model, verify the whole on `input_data` and put it in place.

    The prepared modules of a variant of the model, with exact functions if the argument says so, come from a function
    so that their weights can be freed while they are built. `program` gives each operator its scheduled form (the
    default one if it is None), `tuned` goes into the manifest. With `pad`, which has been checked, a model for several
    shapes fills inputs up. With `choose_threads` operators are timed here to choose on how many threads each runs. A
    model that is wrong by little more than allowed is built again with operators in their exact forms. With `choices`,
    by label of the shape, neither is decided here.
    """
    check_partition(model, target)
    feeds = verification_feeds(model, input_data)
    gpu = target.gpu.architecture if target.gpu is not None else ""
    with replace_directory(output) as staging:
        shared = WeightsFile(staging / WEIGHTS) if model.variants else None

        def write_variant(variant: Model, label: str, feeds: list[dict[str, Array]]) -> Variant:
            before, size = set(staging.iterdir()), shared.size if shared else 0
            chosen = None if choices is None else choices[label]

            def attempt(exact: ExactForms) -> tuple[tuple[Part, ...], Verification]:
                for leftover in set(staging.iterdir()) - before:
                    leftover.unlink()
                if shared:
                    shared.cut_back(size)
                modules, files = prepared(variant, exact.functions), _Files(staging, label, shared)
                timed_on = feeds[0] if choose_threads else None
                parts = _write_parts(variant, modules, target, exact, files, timed_on, chosen, stage)
                # What is verified is the very file that will be loaded, not the compiler's copy of it in memory.
                stage("verify")
                run = open_parts(staging, parts, variant.inputs, variant.outputs, threads or target.threads, gpu)
                try:
                    return parts, verify(variant, run, feeds, target.dtype, (exact.note,) if exact.note else ())
                finally:
                    run.close()

            exact, (parts, checked) = _most_inexact(variant, program, target, attempt, chosen)
            specs, exactness = (variant.inputs, variant.outputs), (exact.operators, exact.functions)
            return Variant(*specs, variant.options, variant.fingerprint, checked, parts, *exactness)

        variants = tuple(map(write_variant, model.shape_variants, variant_labels(model), feeds))
        if input_data:
            write_archive(staging / INPUTS, input_data)
        whole = None if model.parts or model.variants else variants[0].parts[0]
        manifest = Manifest(
            model=model.name,
            source=model.source,
            options=model.options,
            fingerprint=model.fingerprint,
            inputs=model.inputs,
            outputs=model.outputs,
            architecture=target.architecture,
            cpu=str(target) if target.gpu is not None else target.cpu,
            features=target.features,
            threads=target.threads,
            versions=versions(),
            verification=merged([v.verification for v in variants if v.verification is not None]),
            library=whole.file if whole else "",
            weights=whole.weights if whole else (),
            checksums={path.name: checksum(path) for path in sorted(staging.iterdir())},
            prefix=whole.prefix if whole else "",
            tuned=tuned or {},
            gpu=gpu,
            dtype=target.dtype,
            parts=variants[0].parts if model.parts else (),
            input_data=INPUTS if input_data else "",
            step_threads=whole.step_threads if whole else (),
            exact_operators=() if model.variants else variants[0].exact_operators,
            exact_functions=not model.variants and variants[0].exact_functions,
            variants=variants if model.variants else (),
            pad=pad,
        )
        manifest.write(staging)
    return manifest


def verification_feeds(model: Model, input_data: dict[str, Array] | None) -> list[list[dict[str, Array]]]:
    """The inputs that each variant of a model is verified on; data for one shape is repeated or cut to the others."""
    if not model.variants or not input_data:
        return [verification_inputs(variant, input_data) for variant in model.shape_variants]
    return [verification_inputs(variant, fit_arrays(input_data, variant.inputs)) for variant in model.variants]


def check_partition(model: Model, target: Target) -> None:
    """Raises if the model was cut and the target is a GPU: tensors would have to be copied between the parts."""
    if model.onnx_parts and target.gpu is not None:
        reasons = "; ".join(reason for part in model.onnx_parts for reason in part.reasons)
        raise UnsupportedModelError(f"on a GPU a model has to be compiled as a whole: {reasons}; use --target cpu")


def _most_inexact(
    model: Model,
    program: Callable[[Any], Any] | None,
    target: Target,
    attempt: Callable[[ExactForms], T],
    choices: BuildChoices | None,
) -> tuple[ExactForms, T]:
    """The first attempt that passes; each makes more operators exact than the one before. With `choices` the only."""
    from slipstream.graph.exact_forms import ExactForms
    from slipstream.graph.fast_math import has_polynomials

    if choices is not None:
        exact = ExactForms(program, target, choices.exact_operators, choices.exact_functions)
        return exact, attempt(exact)
    exact = ExactForms(program, target)
    try:
        return exact, attempt(exact)
    except VerificationError as error:
        if not error.may_be_rounding:
            raise
        first = error
    functions = target.gpu is None and any(has_polynomials(part.module) for part in model.compiled_parts)
    for _ in exact.steps(functions):
        try:
            return exact, attempt(exact)
        except VerificationError:
            continue
    raise first


@dataclass(frozen=True)
class _Files:
    """Where the files of one variant go; `label` tells it from the others, with which it has the `shared` weights."""

    directory: Path
    label: str
    shared: WeightsFile | None

    def weights(self, suffix: str) -> WeightsFile:
        return self.shared or WeightsFile(self.directory / WEIGHTS.replace(".", f"{suffix}."))

    def copy_onnx(self, path: Path) -> str:
        """Copy an ONNX file and the weights beside it; the new name."""
        name = f"{symbol_prefix(self.label)}-{path.name}" if self.label else path.name
        if self.label:  # the name of the weights' file is in the model
            import onnx

            from slipstream.frontends.onnx_files import save

            save(onnx.load(str(path)), self.directory / name)
        else:
            for file in path.parent.glob(f"{path.name}*"):
                shutil.copyfile(file, self.directory / file.name)
        return name


def _write_parts(
    model: Model,
    prepared: Sequence[Any],
    target: Target,
    program: ExactForms,
    files: _Files,
    timed_on: dict[str, Array] | None,
    choices: BuildChoices | None,
    stage: Progress,
) -> tuple[Part, ...]:
    modules = list(prepared)
    del prepared
    chosen_threads = iter(choices.step_threads if choices else ())
    parts = []
    for number, part in enumerate(model.parts or model.compiled_parts):
        if isinstance(part, OnnxPart):
            file = files.copy_onnx(part.path)
            parts.append(Part(part.name, file, part.inputs, part.outputs, part.nodes, part.reasons))
        else:
            suffix = f"-{number}" if model.parts else ""
            with tvm_errors(model.name):
                built = _build_next(modules, target, program, stage)
                if choices is not None:
                    built = replace(built, plan=with_step_threads(built.plan, next(chosen_threads, ())))
                prefix = symbol_prefix(f"{model.name}-{files.label}{suffix}") if built.plan is not None else ""
                weights, own = files.weights(suffix), timed_on if choices is None else None
                parts.append(_write_compiled(part, built, target, prefix, weights, own, stage))
    return tuple(parts)


def _build_next(modules: list[Any], target: Target, program: ExactForms, stage: Progress) -> BuiltModel:
    """Build the first of `modules`, which is taken off the list so that its weights can be freed."""
    from slipstream.graph.build import apply_programs, build_planned

    stage("schedule")
    scheduled = apply_programs(modules.pop(0), target, program)
    stage("build")
    return build_planned(scheduled, target)


def _write_compiled(
    part: CompiledPart,
    built: BuiltModel,
    target: Target,
    prefix: str,
    file: WeightsFile,
    timed_on: dict[str, Array] | None,
    stage: Progress,
) -> Part:
    """Write one part. With inputs of the model to be timed on, it is chosen on how many threads each operator runs."""
    stage("link")
    weights_file, weights = file.path, file.add(built.weights)
    library = _write_library(part, built, target, prefix, weights_file, weights)
    if built.plan is not None and timed_on is not None:
        stage("threads")
        if (
            plan := _with_chosen_threads(built.plan, part, target.threads, library, prefix, weights_file, timed_on)
        ) is not None:
            library.unlink()
            built = replace(built, plan=plan)
            library = _write_library(part, built, target, prefix, weights_file, weights)
    files = (weights_file.name, weights, prefix, tuple(step.threads for step in built.plan.steps) if built.plan else ())
    return Part(part.name, library.name, part.inputs, part.outputs, part.nodes, (), *files)


def _with_chosen_threads(
    plan: Plan, part: CompiledPart, threads: int, library: Path, prefix: str, weights: Path, feed: dict[str, Array]
) -> Plan | None:
    """The plan with the threads that are fastest for each step; None if it is best as it is.

    What another part computes is random here, but for integers: as an index, zero is always inside of a tensor.
    """
    missing = tuple(spec for spec in part.inputs if spec.name not in feed)
    between = random_inputs(missing, np.random.default_rng(0))
    between = {name: value if value.dtype.kind == "f" else np.zeros_like(value) for name, value in between.items()}
    inputs = [np.asarray((between | feed)[spec.name], order="C") for spec in part.inputs]
    loaded = ModelLibrary(library, prefix, weights, part.outputs, threads)
    try:
        chosen = choose_step_threads(loaded, inputs, threads)
    finally:
        loaded.close()
    if chosen is None:
        return None
    return with_step_threads(plan, chosen)


def _write_library(
    part: CompiledPart,
    built: BuiltModel,
    target: Target,
    prefix: str,
    weights_file: Path,
    weights: Sequence[WeightSpec],
) -> Path:
    """Write the code beside the weights, under a name that says its content.

    A process that has a library open is given the same one again for the same path, whatever is there now.
    """
    path = weights_file.with_name("model.so")
    if built.plan is None:
        built.executable.export_library(str(path), fcompile=link)
    else:
        copy_pool(path.parent)
        offsets, size = [weight.offset for weight in weights], weights_file.stat().st_size
        processor = cpuinfo_words(target.features)
        source = model_source(built.plan, prefix, part.inputs, part.outputs, offsets, size, target.threads, processor)
        link_model(source, built.objects, path, prefix)
    return path.rename(path.with_name(f"model-{checksum(path)[:12]}.so"))


def versions() -> dict[str, str]:
    """Those that what is compiled here depends on."""
    packages = ("apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime", "numpy")
    return {
        "slipstream": VERSION,
        **{name: importlib.metadata.version(name) for name in packages},
    }
