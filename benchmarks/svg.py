"""Plain SVG that follows a light or dark page, for pictures made from raw results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path

BAR = 15
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; } .faint { fill: #59636e; }
.ours { fill: #0b62b8; } .theirs { fill: #9aa4ae; } .later { fill: #d5dae0; }
.axis { stroke: #59636e; } .grid { stroke: #d5dae0; } .spread { stroke: #1f2328; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .faint { fill: #9198a1; }
  .ours { fill: #5aa9f5; } .theirs { fill: #7d8690; } .later { fill: #3d444d; }
  .axis { stroke: #9198a1; } .grid { stroke: #3d444d; } .spread { stroke: #e6edf3; }
}"""


def write(path: Path, width: float, height: float, said: str, body: Iterable[str]) -> None:
    lines = "\n".join(body)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(said)}">\n<style>{_STYLE}\n</style>\n{lines}\n</svg>\n'
    )


def legend(x: float, y: float, entries: Mapping[str, str]) -> Iterator[str]:
    for kind, name in entries.items():
        yield f'<rect class="{kind}" x="{x:.1f}" y="{y - 9}" width="10" height="10"/>'
        yield text(x + 15, y, name, "faint")
        x += 24 + 7 * len(name)


def bar(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{BAR}"/>'


def dot(x: float, y: float, kind: str) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
