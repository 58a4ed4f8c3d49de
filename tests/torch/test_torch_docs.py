"""The examples of docs/torch.md, one after the other as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch.captured import all_are_compiled  # noqa: E402

EXAMPLES = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "torch.md").read_text(), re.DOTALL)


def test_the_first_example() -> None:
    exec(EXAMPLES[0], {})
    assert all_are_compiled()


@pytest.mark.slow
def test_all_examples() -> None:
    names: dict[str, Any] = {}
    for example in EXAMPLES:
        exec(example, names)
    assert all_are_compiled()
