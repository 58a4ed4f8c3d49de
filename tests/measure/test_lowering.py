"""Lowering for measuring: the operator's code is what TVM's own build makes of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
from tvm import te, tirx

from slipstream.graph.cpu.default_schedule import schedule_default
from slipstream.machine.target import resolve_target
from slipstream.measure.lowering import generate, lower
from tests.measure.test_cpu import scheduled_matmul
from tests.measure.test_rpc import program

_ENTRY = "__tvm_ffi_main"


def _functions(library: Any) -> dict[str, str]:
    """Assembly by function, without numbered labels and comments."""
    text = re.sub(r"#.*|//.*|\.L\w+", "", library.inspect_source("asm"))
    parts = re.split(r"^(\w+):\n", text, flags=re.MULTILINE)
    code = dict(zip(parts[1::2], parts[2::2], strict=True))
    instructions = re.compile(r"^\t[a-z].*$", re.MULTILINE)
    return {name: "\n".join(instructions.findall(body)) for name, body in code.items()}


@pytest.mark.parametrize("prepack", [False, True])
def test_what_is_left_out_to_build_sooner_does_not_change_the_code_of_the_operator(prepack: bool) -> None:
    target = resolve_target()
    mod = tvm.ir.load_json(scheduled_matmul(16, prepack=prepack).module)
    measured = _functions(generate(lower(mod, target), target))
    stock = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    built = _functions(tvm.tirx.build(stock, target.tvm))
    kernels = [name for name in built if "compute" in name or "lambda" in name]
    assert kernels
    for name in kernels:
        assert measured[name] == built[name]
        assert "fma" in built[name] or "mul" in built[name] or name == "main_compute_"
    assert len(measured[_ENTRY]) < len(built[_ENTRY]) / 2


def test_a_condition_on_a_vector_is_simplified_as_in_a_model() -> None:
    """Pieces are joined by whole vectors, not element by element."""
    target = resolve_target()
    pieces = [te.placeholder((64, 128), name=name) for name in "ab"]
    joined = te.compute((64, 256), lambda i, j: tirx.if_then_else(j < 128, pieces[0][i, j], pieces[1][i, j - 128]))
    scheduled = schedule_default(te.create_prim_func([*pieces, joined]), target)
    mod = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    measured, built = _functions(generate(lower(mod, target), target)), _functions(tvm.tirx.build(mod, target.tvm))
    kernels = [name for name in built if "compute" in name or "lambda" in name]
    assert kernels
    assert all(measured[name] == built[name] for name in kernels)


def test_a_program_keeps_assertions_of_its_own() -> None:
    target = resolve_target()
    checked = generate(lower(tvm.ir.load_json(program("error").module), target), target)
    assert "no such luck" in checked.inspect_source("ll")
