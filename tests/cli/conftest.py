"""One process for all commands that need none of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.forked_commands import ForkedCommands


@pytest.fixture(scope="session")
def forked_command() -> Iterator[ForkedCommands]:
    with ForkedCommands() as commands:
        yield commands
