"""Every figure in README.md and docs/ is what the committed raw results say, or a setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import docs

# What looks measured: a number with a unit, a ratio, a spread.
_NUMBER = r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?"
MEASURED = re.compile(
    rf"{_NUMBER}x\b"
    rf"|{_NUMBER} ?(?:ms|µs|%|GFLOP/s|TFLOP/s|GB/s|MB|KB|GB|s\b|seconds\b|trials a second|trials/s)"
    rf"|{_NUMBER} times (?:as|sooner|faster|slower|longer|fewer|the|than)"
    rf"|\({_NUMBER} - \d"
)
# Settings, limits and definitions, by page: what surrounds them, as it stands there.
SETTINGS = {
    "api.md": [],
    "dynatune.md": [],
}
# Filled from raw results of its own.
NOT_YET = {"gpu.md"}
PAGES = [page for page in docs.PAGES if page.name not in NOT_YET]


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_tables_and_figures_are_those_of_the_raw_results(page: Path) -> None:
    assert docs.filled(page.read_text()) == page.read_text(), "run python -m benchmarks.docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_figure_that_looks_measured_is_marked(page: Path) -> None:
    text = _prose(page.read_text())
    for setting in SETTINGS.get(page.name, []):
        assert setting in text, f"{setting!r} is no longer in {page.name}: take it off the list"
        text = text.replace(setting, "")
    assert not MEASURED.findall(text)


def _prose(page: str) -> str:
    """The page in one line, without code, tables and figures that are filled in."""
    page = "".join(docs.CODE.split(page)[::2])
    for hidden in (docs.TABLE, docs.FIGURE, re.compile(r"`[^`]*`")):
        page = hidden.sub("", page)
    return " ".join(page.split())
