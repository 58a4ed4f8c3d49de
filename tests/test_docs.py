"""The pages under docs/ name what there is, and their links lead somewhere."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import slipstream
from slipstream import plugins
from slipstream.cli.report import _PLOTS
from slipstream.cli.serve import serve
from slipstream.report import plots, server

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
API = (ROOT / "docs" / "api.md").read_text()
REPORT = (ROOT / "docs" / "report.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


def section(name: str) -> str:
    """The text under the heading that starts with `name`."""
    found = re.search(rf"^## `{name}\b.*?(?=^## |\Z)", API, re.DOTALL | re.MULTILINE)
    assert found, f"docs/api.md has no section on {name}"
    return found[0]


@pytest.mark.parametrize("name", ["tune", "resume", "compile", "load", "export", "load_model"])
def test_the_api_page_has_every_argument(name: str) -> None:
    text = section(name)
    for argument in inspect.signature(getattr(slipstream, name)).parameters:
        assert re.search(rf"\b{argument}\b", text), argument


def test_the_api_page_has_the_defaults_of_tune() -> None:
    rows = re.findall(r"^\| (`.*?) \| (`.*?`)? ?\|", section("tune"), re.MULTILINE)
    documented = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    real = inspect.signature(slipstream.tune).parameters.values()
    expected: Any = {p.name: "" if p.default is p.empty else f"`{p.default!r}`".replace("'", '"') for p in real}
    assert documented == expected


def test_the_api_page_has_every_public_name_and_field() -> None:
    for name in slipstream.__all__:
        assert f"`{name}" in API or f"-> {name}" in API, name
    for field in fields(slipstream.TuningResult):
        assert f"`{field.name}`" in section("TuningResult"), field.name


def test_the_report_page_has_the_options_and_limits() -> None:
    assert set(_PLOTS) == set(plots.PLOTS)
    for plot in _PLOTS:
        assert f"`{plot}`" in REPORT
    defaults = {option.opts[0]: option.default for option in serve.params if option.opts[0].startswith("--")}
    for option in ("--host", "--port"):
        assert f"| `{option}` | `{defaults[option]}` |" in REPORT
    assert f"At most {server.MOST_CONNECTIONS} connections and {server.MOST_STREAMS} pages" in REPORT
    assert f"dropped after {server.PATIENCE_S:g} s" in REPORT.replace("\n", " ").replace("  ", " ")


# A name that starts with one of these is meant to be a path of the repository; `out/model` is not.
OURS = ("slipstream", "benchmarks", "tests", "docs")
FOLDERS = {*OURS, *(folder.name for folder in (ROOT / "slipstream").iterdir() if folder.is_dir())}
FILES = [str(path.relative_to(ROOT)) for folder in OURS for path in (ROOT / folder).rglob("*.py")]
# Of the example package that docs/your-own-scheduler.md shows whole.
EXAMPLE = ("proportional.py", "test_proportional.py")


def named_paths(text: str) -> set[str]:
    """The files and folders of the repository that a page names in backticks."""
    spans = re.findall(r"`([\w.-]+/[\w./-]*|[\w./-]+\.py)`", text)
    return {span for span in spans if (span.endswith(".py") or span.split("/")[0] in FOLDERS) and "NAME" not in span}


def path_exists(name: str) -> bool:
    """Whether there is such a path from the root, from the package or, for a file, from any folder."""
    found = (ROOT / name).exists() or (ROOT / "slipstream" / name).exists() or name in EXAMPLE
    return found or any(file.endswith(f"/{name}") for file in FILES)


def named_modules(text: str) -> set[str]:
    """The modules, and what is in them, that a page names in backticks by their dotted path."""
    dotted = re.findall(r"`(?:python -m )?((?:slipstream|benchmarks)(?:\.\w+)+)", text)
    return {name for name in dotted if "NAME" not in name and name not in plugins.GROUPS.values()}


def module_exists(name: str) -> bool:
    """Whether `name` is a module, or a class or function of one."""
    path = ROOT.joinpath(*name.split("."))
    if path.with_suffix(".py").exists() or path.is_dir():
        return True
    module, _, attribute = name.rpartition(".")
    return hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_modules_named_exist(page: Path) -> None:
    text = page.read_text()
    missing = [name for name in named_paths(text) if not path_exists(name)]
    missing += [name for name in named_modules(text) if not module_exists(name)]
    assert not missing


def test_what_is_no_path_or_module_is_found() -> None:
    text = "`graph/no_such.py` `graph/` `no_such.py` `out/model` `slipstream.no_such` `python -m benchmarks.store --x`"
    assert {name for name in named_paths(text) if not path_exists(name)} == {"graph/no_such.py", "no_such.py"}
    assert {name for name in named_modules(text) if not module_exists(name)} == {"slipstream.no_such"}
