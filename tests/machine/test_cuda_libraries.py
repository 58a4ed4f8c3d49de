"""Where CUDA's headers are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.machine import cuda_libraries


def _folder(path: Path, *headers: str) -> Path:
    for header in headers:
        (path / header).parent.mkdir(parents=True, exist_ok=True)
        (path / header).touch()
    return path


def test_a_folder_with_the_headers_of_tensor_cores_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = _folder(tmp_path / "wheel", "cuda_fp16.h", "mma.h")
    toolkit = _folder(tmp_path / "toolkit", "cuda_fp16.h", "mma.h", "crt/mma.h")
    for folders, expected in (
        ([wheel, toolkit], toolkit),
        ([wheel], wheel),
        ([tmp_path / "none", toolkit], toolkit),
        ([tmp_path / "none"], None),
    ):
        monkeypatch.setattr(cuda_libraries, "_include_folders", lambda folders=folders: folders)
        assert cuda_libraries.include_folder() == (str(expected) if expected else None)
