"""CUDA C++ to machine code on any machine that has NVRTC, and where its libraries are found; no GPU is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slipstream.errors import BuildError
from slipstream.machine import cuda_libraries, nvrtc
from tests.gpu import needs_nvrtc

ADD = 'extern "C" __global__ void add(float* x) { x[threadIdx.x] += 1; }'
HALF = '#include <cuda_fp16.h>\n#include <mma.h>\nextern "C" __global__ void twice(half* x) { *x = *x + *x; }'


@needs_nvrtc
def test_what_does_not_compile_says_where() -> None:
    with pytest.raises(BuildError, match=r"kernel.cu\(1\): error"):
        nvrtc.compile_cuda("nonsense;", "sm_90")


@needs_nvrtc
def test_several_at_once_are_the_same_as_one_after_the_other() -> None:
    codes = [ADD, ADD.replace("add", "other")]
    assert nvrtc.compile_many(codes, "sm_90") == [nvrtc.compile_cuda(code, "sm_90") for code in codes]
    with pytest.raises(BuildError, match=r"kernel.cu\(1\): error"):
        nvrtc.compile_many([ADD, "nonsense;"], "sm_90")


@needs_nvrtc
@pytest.mark.skipif(cuda_libraries.include_folder() is None, reason="CUDA's headers are not installed")
def test_headers_of_half_precision_are_found() -> None:
    assert nvrtc.compile_cuda(HALF, "sm_90").startswith(b"\x7fELF")


def test_nothing_found_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine with neither NVIDIA's wheels nor a toolkit."""
    monkeypatch.setattr(cuda_libraries, "_candidates", lambda name: [str(tmp_path / f"lib{name}.so.13")])
    cuda_libraries.load_library.cache_clear()
    try:
        assert not nvrtc.is_available()
        assert nvrtc.version() is None
        with pytest.raises(BuildError, match=r"NVRTC.* not found: pip install 'slipstream\[cuda\]'"):
            nvrtc.compile_cuda(ADD, "sm_90")
    finally:
        cuda_libraries.load_library.cache_clear()


def test_a_toolkit_is_found_without_the_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert cuda_libraries.include_folder() is None
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").touch()
    assert cuda_libraries.include_folder() == str(tmp_path / "include")
    assert cuda_libraries._candidates("nvrtc")[0] == str(tmp_path / "lib64" / "libnvrtc.so.13")
    assert cuda_libraries._candidates("nvrtc")[-2:] == ["libnvrtc.so.13", "libnvrtc.so.12"]
