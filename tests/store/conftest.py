"""Where the stores of these tests are: in a file, and in a PostgreSQL database."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.store import StoreLocation, store_location

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))]

NewLocation = Callable[[str], StoreLocation]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def new_location(tmp_path: Path, request: pytest.FixtureRequest) -> NewLocation:
    """`new_location(kind)`: where no store is yet."""

    numbers = itertools.count()

    def new(kind: str) -> StoreLocation:
        if kind == "sqlite":
            return tmp_path / f"store{next(numbers)}.db"
        server = request.getfixturevalue("postgres")
        return store_location(server.url(server.new_database()))

    return new


@pytest.fixture(params=KINDS)
def location(request: pytest.FixtureRequest, new_location: NewLocation) -> StoreLocation:
    """Where a store of each kind may be made."""
    return new_location(request.param)
