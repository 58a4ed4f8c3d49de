"""One compiled model for all tests of the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

import slipstream


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runtime") / "tiny"
    slipstream.compile("zoo:tiny_cnn", directory)
    return directory
