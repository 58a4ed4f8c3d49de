"""`slipstream.compile`: a model → a verified artifact directory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from slipstream.artifact.directory import check_destination, check_executable
from slipstream.artifact.lock import Lock
from slipstream.artifact.manifest import Manifest, Verification
from slipstream.artifact.padding_check import check_padding
from slipstream.artifact.write import FEW_THREADS, Progress, versions, write_artifact
from slipstream.frontends import Model, load_model
from slipstream.frontends.inputs import Array
from slipstream.frontends.shape_lists import Shapes
from slipstream.frontends.shape_variants import variant_labels
from slipstream.machine.dot_product import dot_product_of
from slipstream.machine.target import resolve_target
from slipstream.tvm_bridge.imports import import_tvm_without_torch

NO_DOT_PRODUCT = "the target has no instruction for 8-bit dot products: the model runs in float32 and gains no speed"


@dataclass(frozen=True)
class CompileResult:
    """Where the artifact is, how it was verified, what preparation did and how long each stage took."""

    directory: Path
    manifest: Manifest
    passes: list[Any]
    seconds: dict[str, float]
    warnings: tuple[str, ...] = ()  # how it differs from what the lock file was made with, what the CPU lacks

    @property
    def verification(self) -> Verification | None:
        return self.manifest.verification


def compile(
    model: Any,
    output: str | Path,
    *,
    example_inputs: Sequence[Any] | None = None,
    shapes: Shapes | None = None,
    pad: bool = False,
    constants: Mapping[str, float] | None = None,
    target: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    input_data: dict[str, Array] | None = None,
    partition: bool = True,
    lock: str | Path | None = None,
    progress: Progress = lambda stage: None,
) -> CompileResult:
    """Compile `model` (anything `load_model` takes) into the directory `output`.

    The result has been compared with the reference on several seeds; on a mismatch, as on any other error,
    nothing is written and a previous artifact in `output` stays as it was. `dtype` "float16" computes a float32
    model's products in half precision; its inputs and outputs stay as they are. What cannot be compiled runs
    in ONNX Runtime, unless `partition` is False. With `input_data`, by name, the model is run on nothing else; what it
    does not name is random. `shapes` with lists or ranges (docs/shapes.md) make one artifact for all of them; with
    `pad`, inputs of other shapes are filled up with zeros to the next larger one and results are cut back. With a
    `lock` file the model gets the programs, the target, the threads and, unless they are given, the shapes and
    constants that were recorded there, for each shape: nothing is tuned or chosen.
    """
    output = Path(output)
    check_destination(output)
    check_executable(output)
    clock = _Stages(progress)
    clock.start("import")
    import_tvm_without_torch()
    locked = None if lock is None else Lock.read(lock)
    if locked is None:
        resolved = resolve_target(target, threads, dtype)
    else:
        resolved = locked.target_here(target, threads, dtype)
        threads, shapes, constants = resolved.threads, shapes or locked.shapes, constants or locked.constants
        pad = pad or locked.pad
    loaded = (
        model
        if isinstance(model, Model)
        else load_model(
            model,
            example_inputs=example_inputs,
            shapes=shapes,
            constants=constants,
            partition=partition,
            input_data=input_data,
        )
    )
    labels = dict(zip((variant.inputs for variant in loaded.shape_variants), variant_labels(loaded), strict=True))
    warnings = locked.warnings(loaded.name, loaded.fingerprint, versions()) if locked else ()
    if locked is not None:
        locked.check_shapes(list(labels.values()))
    if pad:
        check_padding(loaded)
    passes: dict[Any, list[Any]] = {}  # by the inputs of a variant

    def prepared(variant: Model, exact_functions: bool) -> Sequence[Any]:
        from slipstream.graph.prepare import prepare_parts

        clock.start("prepare")
        modules, passes[variant.inputs] = prepare_parts(variant, resolved, exact_functions=exact_functions)
        if locked is not None:
            from slipstream.graph.operators import extract_operators

            found = extract_operators(*modules)
            locked.check_operators(loaded.name, loaded.fingerprint, labels[variant.inputs], found)
        return modules

    manifest = write_artifact(
        loaded,
        prepared,
        resolved,
        output,
        program=locked.scheduler(resolved) if locked else None,
        threads=threads,
        input_data=input_data,
        tuned=locked.tuned if locked else None,
        pad=pad,
        choose_threads=resolved.threads > FEW_THREADS,
        choices=locked.choices if locked else None,
        stage=clock.start,
    )
    reports = _sum_reports(list(passes.values()))
    if loaded.quantised and resolved.gpu is None and not dot_product_of(resolved).instruction:
        warnings = (*warnings, NO_DOT_PRODUCT)
    return CompileResult(output, manifest, reports, clock.stop(), tuple(warnings))


def _sum_reports(of_variants: Sequence[list[Any]]) -> list[Any]:
    from slipstream.graph.pass_report import sum_reports

    return [reduce(sum_reports, reports) for reports in zip(*of_variants, strict=True)]


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
            self._seconds[stage] = self._seconds.get(stage, 0.0) + time.perf_counter() - began
            self._current = None
        return self._seconds
