"""Lowering for measuring: the operator's code is what TVM's own build makes of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm

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


def test_a_program_keeps_assertions_of_its_own() -> None:
    target = resolve_target()
    checked = generate(lower(tvm.ir.load_json(program("error").module), target), target)
    assert "no such luck" in checked.inspect_source("ll")
