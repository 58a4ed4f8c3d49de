"""Fills the tables and figures of README.md and docs/ from the committed raw results: `python -m benchmarks.docs`.

    <!-- table: store -->            what `benchmarks.store` has before its first heading, and where it comes from,
    <!-- end -->                     once a page; `store#resnet18` is the part below that heading
    <!--store:best ms-->0.05<!--/--> a figure of its `numbers`, in running text

Both are invisible where the page is rendered. A test fails if a page differs from the raw results.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

from benchmarks import runner
from benchmarks.dynatune import quoted
from slipstream.errors import SlipstreamError

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLE = re.compile(r"<!-- table: (?P<name>[\w.]+)(#(?P<heading>[^\n]+?))? -->\n.*?<!-- end -->", re.DOTALL)
FIGURE = re.compile(r"<!--(?P<name>[\w.]+):(?P<key>[^\n]+?)-->(?P<text>[^\n]*?)<!--/-->")
CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)


def table(name: str, heading: str | None) -> str:
    """The part of a benchmark's page below that heading, or before the first one."""
    page, _ = _page(name)
    if not page:
        return f"*Not measured yet: `python -m benchmarks.{name}`.*"
    parts = _HEADING.split(page)
    sections = {None: parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    if heading not in sections:
        raise SlipstreamError(f"benchmarks/results/{name}.md has no heading {heading!r}")
    return sections[heading].strip()


def source(name: str) -> str:
    """Where the results of a benchmark come from."""
    return _page(name)[1]


def figure(name: str, key: str) -> str:
    known = _numbers(name)
    if key not in known:
        raise SlipstreamError(f"numbers() of {name} has no {key!r}; it has: {', '.join(known)}")
    return known[key]


def filled(page: str) -> str:
    """The page with what the raw results say in every table and figure; examples in code stay as they are."""
    parts, sourced = CODE.split(page), set[str]()
    return "".join(part if n % 2 else _filled(part, sourced) for n, part in enumerate(parts))


def _filled(text: str, sourced: set[str]) -> str:
    """`sourced` are the benchmarks whose provenance is already on the page."""

    def with_source(found: re.Match[str]) -> str:
        name = found["name"]
        parts = [table(name, found["heading"]), "" if name in sourced else source(name)]
        sourced.add(name)
        body = "\n\n".join(part for part in parts if part)
        return f"{found[0].partition(chr(10))[0]}\n{body}\n<!-- end -->"

    text = TABLE.sub(with_source, text)
    return FIGURE.sub(lambda m: f"<!--{m['name']}:{m['key']}-->{figure(m['name'], m['key'])}<!--/-->", text)


@cache
def _page(name: str) -> tuple[str, str]:
    """The tables of a benchmark, and where they come from."""
    if name in quoted.NAMES:
        return quoted.page(name), ""
    if name not in runner.titles():
        raise SlipstreamError(f"there is no benchmark {name}; there are: {', '.join(runner.titles())}")
    raw = runner.read(name)
    if raw is None:
        return "", ""
    return import_module(f"benchmarks.{name}").markdown(runner.data_of(raw)), runner.provenance(raw)


@cache
def _numbers(name: str) -> Mapping[str, str]:
    if name in quoted.NAMES:
        return quoted.numbers(name)
    raw = runner.read(name)
    if raw is None:
        raise SlipstreamError(f"benchmarks/results has no raw results of {name}: run python -m benchmarks.{name}")
    found: Mapping[str, str] = import_module(f"benchmarks.{name}").numbers(runner.data_of(raw))
    return found


def main() -> None:
    for page in PAGES:
        before = page.read_text()
        try:
            after = filled(before)
        except SlipstreamError as error:
            sys.exit(f"error: {page.name}: {error}")
        if after != before:
            page.write_text(after)
            print(f"{page.relative_to(ROOT)} brought up to date")


if __name__ == "__main__":
    main()
