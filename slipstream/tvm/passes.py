"""Passes of Relax for a pipeline of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from slipstream.artifact.write import tvm_errors
from slipstream.errors import BuildError, ModelError
from slipstream.graph.prepare import prepare
from slipstream.machine.target import resolve_target
from slipstream.tvm.module import legalized, tir_calls
from slipstream.tvm.programs import read_best, with_programs
from slipstream.tvm.target import target_spec

# Passes are called by TVM, which would turn errors of classes that it does not have into a RuntimeError.
for _error in (ModelError, BuildError):
    tvm_ffi.register_error(_error.__name__, _error)


@tvm.transform.module_pass(opt_level=0, name="slipstream.Tuned")
class Tuned:
    """Gives operators the best programs of the session in `work_dir`, those that no database can hold included.

    Constants are packed for these programs. Operators without one stay as they are. A module with operators of Relax
    is legalised and fused first, as `compile_relax` does. Later passes that schedule leave the operators alone.
    """

    def __init__(self, work_dir: str | Path) -> None:
        self._found = read_best(work_dir)

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        target = self._found.target
        return with_programs(legalized(mod, target), self._found.best, target)


@tvm.transform.module_pass(opt_level=0, name="slipstream.Prepare")
class Prepare:
    """Legalises and fuses as Slipstream does: batch norms folded, 2-D convolutions in NHWC, vectors filled, exp and
    similar functions as polynomials, weights marked to be packed. For a module of which nothing is legalised.
    """

    def __init__(self, target: Any) -> None:
        self._target = resolve_target(*target_spec(target))

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        if any(True for _ in tir_calls(mod)):
            raise ModelError("the module is legalised already: put slipstream.tvm.Prepare before LegalizeOps")
        with tvm_errors("the module"):
            return prepare(mod, self._target)[0]
