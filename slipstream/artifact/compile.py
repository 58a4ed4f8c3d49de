"""`slipstream.compile`: a model → a verified artifact directory."""

from __future__ import annotations

import importlib.metadata
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.artifact.directory import check_destination, replace_directory
from slipstream.artifact.loaded import open_executor
from slipstream.artifact.manifest import WEIGHTS, Manifest, Verification, WeightSpec, checksum
from slipstream.artifact.step_threads import choose_step_threads
from slipstream.artifact.verify import verification_inputs, verify
from slipstream.artifact.weights import write_weights
from slipstream.errors import BuildError, SlipstreamError
from slipstream.frontends import Model, load_model
from slipstream.frontends.inputs import Array
from slipstream.machine.linker import link
from slipstream.machine.target import Target, resolve_target
from slipstream.runtime.library import POOL, ModelLibrary
from slipstream.runtime.link import copy_pool, model_linker
from slipstream.runtime.plan import Plan
from slipstream.runtime.source import model_source, symbol_prefix
from slipstream.version import VERSION

Progress = Callable[[str], None]

# On so few the plan's estimate of how many threads an operator is worth is as good as a measurement.
_FEW_THREADS = 4


@dataclass(frozen=True)
class CompileResult:
    """Where the artifact is, how it was verified, what preparation did and how long each stage took."""

    directory: Path
    manifest: Manifest
    passes: list[Any]
    seconds: dict[str, float]

    @property
    def verification(self) -> Verification | None:
        return self.manifest.verification


def compile(
    model: Any,
    output: str | Path,
    *,
    example_inputs: Sequence[Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, float] | None = None,
    target: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    input_data: dict[str, Array] | None = None,
    progress: Progress = lambda stage: None,
) -> CompileResult:
    """Compile `model` (anything `load_model` takes) into the directory `output`.

    The result has been compared with the reference on several seeds; on a mismatch, as on any other error,
    nothing is written and a previous artifact in `output` stays as it was. `dtype` "float16" computes a float32
    model's products in half precision, on a GPU; its inputs and outputs stay as they are.
    """
    output = Path(output)
    check_destination(output)
    clock = _Stages(progress)
    clock.start("import")
    resolved = resolve_target(target, threads, dtype)
    loaded = (
        model
        if isinstance(model, Model)
        else load_model(model, example_inputs=example_inputs, shapes=shapes, constants=constants)
    )
    feeds = verification_inputs(loaded, input_data)
    passes: list[Any] = []

    def prepared() -> Any:
        from slipstream.graph.prepare import prepare

        clock.start("prepare")
        module, reports = prepare(loaded.module, resolved)
        passes.extend(reports)
        return module

    manifest = write_artifact(
        loaded,
        prepared,
        resolved,
        output,
        threads=threads,
        feeds=feeds,
        choose_threads=resolved.threads > _FEW_THREADS,
        stage=clock.start,
    )
    return CompileResult(output, manifest, passes, clock.stop())


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
    prepared: Callable[[], Any],
    target: Target,
    output: Path,
    *,
    program: Callable[[Any], Any] | None = None,
    threads: int | None = None,
    feeds: list[dict[str, Array]] | None = None,
    tuned: dict[str, Any] | None = None,
    choose_threads: bool = False,
    stage: Progress = lambda stage: None,
) -> Manifest:
    """Schedule and build a prepared module, verify it on `feeds` and put it in place.

    The module comes from a function so that its weights can be freed while it is built. `program` gives each
    operator its scheduled form (the default one if it is None), `tuned` goes into the manifest. With `choose_threads`
    operators are timed here to choose on how many threads each runs.
    """
    from slipstream.graph.build import apply_programs, build_planned

    if feeds is None:
        feeds = verification_inputs(model, None)
    with tvm_errors(model.name):
        module = prepared()
        stage("schedule")
        scheduled = apply_programs(module, target, program)
        del module
        stage("build")
        built = build_planned(scheduled, target)
        del scheduled
    with replace_directory(output) as staging:
        stage("link")
        weights = write_weights(staging / WEIGHTS, built.weights)
        prefix = symbol_prefix(model.name) if built.plan is not None else ""
        if prefix:
            copy_pool(staging)
        library = _write_library(built, model, target.threads, weights, prefix, staging)
        if built.plan is not None and choose_threads:
            stage("threads")
            plan = _with_chosen_threads(built.plan, model, target.threads, staging / library, feeds[0])
        else:
            plan = None
        if plan is not None:
            (staging / library).unlink()
            library = _write_library(replace(built, plan=plan), model, target.threads, weights, prefix, staging)
        files = [library, WEIGHTS, *([POOL] if prefix else [])]
        del built
        # What is verified is the very file that will be loaded, not the compiler's copy of it in memory.
        stage("verify")
        gpu = target.gpu.architecture if target.gpu is not None else ""
        run = open_executor(
            staging, library, weights, model.inputs, model.outputs, threads or target.threads, gpu, prefix
        )
        try:
            verification = verify(model, run, feeds, target.dtype)
        finally:
            run.close()
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
            versions=_versions(),
            verification=verification,
            library=library,
            weights=weights,
            checksums={name: checksum(staging / name) for name in files},
            prefix=prefix,
            tuned=tuned or {},
            gpu=gpu,
            dtype=target.dtype,
        )
        manifest.write(staging)
    return manifest


def _with_chosen_threads(plan: Plan, model: Model, threads: int, library: Path, feed: dict[str, Array]) -> Plan | None:
    """The plan with the threads that are fastest for each step; None if it is best as it is."""
    loaded = ModelLibrary(library, symbol_prefix(model.name), library.with_name(WEIGHTS), model.outputs, threads)
    try:
        inputs = [np.asarray(feed[spec.name], order="C") for spec in model.inputs]
        chosen = choose_step_threads(loaded, inputs, threads)
    finally:
        loaded.close()
    if chosen is None:
        return None
    return replace(plan, steps=tuple(replace(s, threads=n) for s, n in zip(plan.steps, chosen, strict=True)))


def _write_library(
    built: Any, model: Model, threads: int, weights: Sequence[WeightSpec], prefix: str, directory: Path
) -> str:
    """Write the code under a name that says its content.

    A process that has a library open is given the same one again for the same path, whatever is there now.
    """
    path = directory / "model.so"
    if built.plan is None:
        built.executable.export_library(str(path), fcompile=link)
    else:
        size = (directory / WEIGHTS).stat().st_size
        offsets = [weight.offset for weight in weights]
        source = model_source(built.plan, prefix, model.inputs, model.outputs, offsets, size, threads)
        with tempfile.TemporaryDirectory() as scratch:
            (file := Path(scratch) / "plan.c").write_text(source)
            built.executable.export_library(str(path), fcompile=model_linker(file, directory, prefix))
    return path.rename(path.with_name(f"model-{checksum(path)[:12]}.so")).name


class _Stages:
    """Tells `progress` what is going on and remembers how long it took."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._seconds: dict[str, float] = {}
        self._current: tuple[str, float] | None = None

    def start(self, stage: str) -> None:
        self.stop()
        self._current = (stage, time.perf_counter())
        self._progress(stage)

    def stop(self) -> dict[str, float]:
        if self._current is not None:
            stage, began = self._current
            self._seconds[stage] = time.perf_counter() - began
            self._current = None
        return self._seconds


def _versions() -> dict[str, str]:
    packages = ("apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime", "numpy")
    return {
        "slipstream": VERSION,
        **{name: importlib.metadata.version(name) for name in packages},
    }
