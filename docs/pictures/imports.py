"""Draws which room imports which: `python docs/pictures/imports.py` writes imports.svg beside this file.

Rooms stand in the order of the layers in pyproject.toml, the lowest first. A figure in a row is how many imports the
room of the row has from the room of the column. All figures are below the diagonal: no room imports one above it.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import grimp
import matplotlib as mpl
import matplotlib.pyplot as plt

_ROOT = Path(__file__).parents[2]


def _layers() -> list[str]:
    contracts = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [room.strip() for layer in reversed(layers) for room in layer.split("|")]


def _imports() -> Counter[tuple[str, str]]:
    graph = grimp.build_graph("slipstream", exclude_type_checking_imports=True)
    counts: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if module.count(".") and imported.count("."):
                counts[module.split(".")[1], imported.split(".")[1]] += 1
    return counts


def main() -> None:
    rooms, counts = _layers(), _imports()
    mpl.rcParams.update({"svg.hashsalt": "slipstream", "font.size": 8})
    figure, axes = plt.subplots(figsize=(8, 7))
    for row, room in enumerate(rooms):
        for column, other in enumerate(rooms):
            if (count := counts[room, other]) and room != other:
                color = "#2a6f97" if column < row else "#c1121f"
                axes.add_patch(plt.Rectangle((column, row), 1, 1, color=color, alpha=min(1.0, 0.25 + count / 40)))
                axes.text(column + 0.5, row + 0.5, count, ha="center", va="center")
        axes.add_patch(plt.Rectangle((row, row), 1, 1, color="#dddddd"))
    axes.set_xlim(0, len(rooms))
    axes.set_ylim(len(rooms), 0)
    axes.set_xticks([n + 0.5 for n in range(len(rooms))], rooms, rotation=90)
    axes.set_yticks([n + 0.5 for n in range(len(rooms))], rooms)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xlabel("is imported")
    axes.set_ylabel("imports")
    figure.tight_layout()
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
