"""Linking, and what is said where nothing can link."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import slipstream
from slipstream.errors import BuildError
from slipstream.machine import linker
from tests.conftest import small_model


def test_a_machine_without_a_linker_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if linker.find_linker() is not None:
        pytest.skip("ziglang is installed")
    with pytest.raises(
        BuildError, match=r"no linker found: install a C compiler .* pip install 'slipstream\[linker\]'"
    ):
        slipstream.compile(small_model(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
def test_a_failing_linker_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "bad.o").write_bytes(b"this is no object file")
    with pytest.raises(BuildError, match=r"linking with .* failed: \S+"):
        linker.link(str(tmp_path / "out.so"), [str(tmp_path / "bad.o")])
