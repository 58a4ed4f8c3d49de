"""Single plots of a session as images, by matplotlib, which `pip install 'slipstream[bench]'` brings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream.report.errors import ReportError

# Okabe and Ito's, in the order of the page.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#b5a400", "#4a4f55")
_OTHER = "#b9bec5"
_MOST_ROWS = 12


def write_plot(structure: dict[str, Any], plot: str, path: Path) -> None:
    """Draw `plot` (a key of `PLOTS`) of a session's structure into `path`."""
    try:
        import matplotlib
    except ImportError as error:
        raise ReportError("--png needs matplotlib: pip install 'slipstream[bench]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    try:
        axes.set_title(_short(f"{structure['session']['model']} ({structure['session']['name']})"), loc="left")
        PLOTS[plot](axes, structure)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=150, format="png")
    finally:
        pyplot.close(figure)


def _latency(axes: Any, structure: dict[str, Any]) -> None:
    colour = _colours(structure)
    by_colour: dict[str, list[tuple[float, float]]] = {}
    for operator, start, end, *_ in structure["slots"]:
        by_colour.setdefault(colour(operator), []).append((start, end - start))
    for shade, spans in by_colour.items():
        everywhere = axes.get_xaxis_transform()  # from the bottom of the plot to its top
        axes.broken_barh(spans, (0, 1), facecolors=shade, alpha=0.15, linewidth=0, transform=everywhere)
    curve = [*structure["curve"]]
    if curve:
        curve.append([max(structure["session"]["elapsed"], curve[-1][0]), curve[-1][1], -1])
    axes.step([t for t, *_ in curve], [1e3 * s for _, s, _ in curve], where="post", color="#1c2024")
    axes.set(xlabel="time, s", ylabel="latency, ms", ylim=(0, None))


def _timeline(axes: Any, structure: dict[str, Any]) -> None:
    colour, rows = _colours(structure), _busiest(structure)[:_MOST_ROWS]
    bars: dict[tuple[int, float], list[tuple[float, float]]] = {}
    for operator, start, end, _, gain, _ in structure["slots"]:
        bars.setdefault((operator, 1.0 if (gain or 0) > 0 else 0.3), []).append((start, end - start))
    for (operator, solid), spans in bars.items():
        if operator in rows:
            place = (rows.index(operator) - 0.35, 0.7)
            axes.broken_barh(spans, place, facecolors=colour(operator), alpha=solid)
    axes.set_yticks(range(len(rows)), [_short(structure["operators"][n]["name"]) for n in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="time, s (pale: the slot gained nothing)")


def _operators(axes: Any, structure: dict[str, Any]) -> None:
    known = [o for o in structure["operators"] if o["best"] and o["start"]]
    shown = sorted(known, key=lambda o: -o["weight"] * o["start"])[:_MOST_ROWS]
    places = range(len(shown))
    axes.barh(places, [1e3 * o["weight"] * o["start"] for o in shown], color=_OTHER, height=0.7, label="before")
    axes.barh(places, [1e3 * o["weight"] * o["best"] for o in shown], color=_COLOURS[0], height=0.4, label="now")
    axes.set_yticks(places, [_short(o["name"]) for o in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="time in one run of the model, ms")
    axes.legend(frameon=False)


def _roofline(axes: Any, structure: dict[str, Any]) -> None:
    colour = _colours(structure)
    known = [(n, o) for n, o in enumerate(structure["operators"]) if o["best"] and o["flops"] and o["bytes"]]
    for n, o in known:
        axes.plot(o["flops"] / o["bytes"], o["flops"] / o["best"] / 1e9, "o", color=colour(n), markersize=5)
    peak, bandwidth = structure["roofline"]["peak"], structure["roofline"]["bandwidth"]
    if known and peak:
        low, high = axes.get_xlim()
        low = min(o["flops"] / o["bytes"] for _, o in known) / 2
        knee = peak / bandwidth if bandwidth else low
        xs = sorted({low, *([knee] if knee > low else []), max(high, 2 * knee)})
        roof = [min(peak, x * bandwidth if bandwidth else peak) / 1e9 for x in xs]
        axes.plot(xs, roof, color="#5b6470")
    axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP per byte", ylabel="GFLOP/s")


def _time(axes: Any, structure: dict[str, Any]) -> None:
    parts = {name: seconds for name, seconds in structure["split"].items() if seconds > 0}
    axes.barh(list(parts), list(parts.values()), color=_COLOURS[0])
    axes.invert_yaxis()
    axes.set(xlabel="time, s")


def _busiest(structure: dict[str, Any]) -> list[int]:
    used = {slot[0] for slot in structure["slots"]}
    return sorted(used, key=lambda n: -structure["operators"][n]["spent"])


def _colours(structure: dict[str, Any]) -> Callable[[int], str]:
    own = dict(zip(_busiest(structure), _COLOURS, strict=False))
    return lambda operator: own.get(operator, _OTHER)


def _short(name: str) -> str:
    # matplotlib reads what stands between dollar signs as mathematics.
    return (name if len(name) <= 48 else f"{name[:47]}…").replace("$", r"\$")


PLOTS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "latency": _latency,
    "timeline": _timeline,
    "operators": _operators,
    "roofline": _roofline,
    "time": _time,
}
