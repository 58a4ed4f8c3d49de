"""One compiled model for all tests of the runtime, whose pool of threads no other test has opened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Build


@pytest.fixture(scope="session")
def artifact(tiny_artifact: Path, made_once: Callable[[str, Build], Path]) -> Path:
    return made_once("runtime", lambda path: shutil.copytree(tiny_artifact, path))
