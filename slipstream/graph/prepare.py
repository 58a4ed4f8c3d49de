"""From an imported model to one whose operators are fused, laid out and ready to be scheduled.

`PASSES` is the whole recipe, in order: a user can print it (`slipstream compile --explain`), and the next
person changes preparation by changing this list.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm.relax import transform

from slipstream.graph import fast_math
from slipstream.graph.batch_norm import fold_batch_norm
from slipstream.graph.fold import fold_constants
from slipstream.graph.pass_report import PassReport
from slipstream.target import Target

Change = Callable[[tvm.IRModule, Target], tvm.IRModule]


@dataclass(frozen=True)
class Pass:
    """One step of preparation. An `optional` one that TVM cannot do on a model is left out of it."""

    name: str
    why: str
    apply: Change
    optional: bool = False


def _tvm(*passes: tvm.ir.transform.Pass) -> Change:
    return lambda mod, _: tvm.transform.Sequential(list(passes))(mod)


PASSES: tuple[Pass, ...] = (
    Pass(
        "batch norm",
        "fold it into the convolution before it; where there is none, leave one multiply and one add",
        lambda mod, _: fold_batch_norm(mod),
    ),
    Pass(
        "decompose",
        "drop dropout and other training-only operators, split composite ones",
        _tvm(transform.DecomposeOpsForInference(), transform.CanonicalizeBindings()),
    ),
    Pass(
        "layout",
        "2-D convolutions in NHWC, so that the channels of one pixel fill a vector",
        _tvm(transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}), transform.Normalize()),
        optional=True,
    ),
    Pass(
        "legalize",
        "express every operator as a loop nest (TIR), exp and its kin as polynomials that vectorise",
        _tvm(transform.LegalizeOps(fast_math.LEGALIZERS)),
    ),
    Pass("fold constants", "compute now what does not depend on the inputs", fold_constants),
    Pass(
        "fuse",
        "padding and element-wise neighbours join their convolution or matmul in one function",
        _tvm(
            transform.AnnotateTIROpPattern(),
            transform.FuseOps(),
            transform.FuseTIR(),
            transform.DeadCodeElimination(),
        ),
    ),
    Pass(
        "mark weights",
        "constant operands may be stored in whatever order the chosen program reads them (prepacking)",
        _tvm(transform.AttachAttrLayoutFreeBuffers()),
    ),
)


def prepare(mod: tvm.IRModule, target: Target) -> tuple[tvm.IRModule, list[PassReport]]:
    """Run `PASSES` over an imported module; the report says what each one took."""
    reports = []
    with target.tvm:
        for step in PASSES:
            started = time.perf_counter()
            skipped = ""
            try:
                mod = step.apply(mod, target)
            except tvm.error.InternalError as error:
                if not step.optional:
                    raise
                skipped = str(error).strip().splitlines()[-1]
            reports.append(PassReport(step.name, step.why, time.perf_counter() - started, skipped))
    return mod, reports
