"""From TIR to a GPU's machine code, on any machine that has NVRTC; no GPU is needed."""

from __future__ import annotations

import numpy as np
import tvm

from slipstream.graph.cpu.default_schedule import schedule_default
from slipstream.machine import nvrtc
from slipstream.measure.lowering import Lowered, lower
from slipstream.program.space import Space
from slipstream.tvm_bridge.nvrtc import without_unused_headers
from tests.gpu import needs_nvrtc, operators, some_gpu


def _source(lowered: Lowered) -> str:
    """The kernels as CUDA C++: without CUDA's runtime TVM stops there, with it a callback sees them."""
    import tvm_ffi
    from tvm.tirx.build import codegen_build

    seen: list[str] = []

    def note(code: str) -> bytes:
        seen.append(str(code))
        return b""

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", note, override=True)
    module = codegen_build(lowered.device, some_gpu().tvm)
    return seen[0] if seen else str(module.inspect_source())


def test_every_operator_has_kernels() -> None:
    for operator in operators():
        scheduled = tvm.IRModule({"main": schedule_default(operator.func, some_gpu())})
        lowered = lower(scheduled, some_gpu())
        assert "__global__" in _source(lowered), operator.name
        assert not lowered.packings


@needs_nvrtc
def test_kernels_compile_without_the_headers() -> None:
    space = Space(operators()[0].key, operators()[0].func, some_gpu())
    rng = np.random.default_rng(0)
    programs = [space.default, *(space.draw(rng, [example]) for example in space.stock)]
    for program in programs:
        realized = space.realize(program)
        assert realized is not None
        source = _source(lower(realized.module, some_gpu()))
        trimmed = without_unused_headers(source)
        assert "#include" not in trimmed
        assert nvrtc.compile_cuda(trimmed, "sm_90").startswith(b"\x7fELF")


def test_code_that_uses_the_headers_keeps_them() -> None:
    header = "#ifdef __CUDACC_RTC__\n#include <x>\n#else\n#endif\n"
    assert without_unused_headers(header + "int a;").endswith("int a;")
    assert "#include" not in without_unused_headers(header + "int a;")
    assert without_unused_headers(header + "std::is_same<int, int> a;").startswith("#ifdef")
