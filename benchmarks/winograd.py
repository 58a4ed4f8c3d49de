"""What Winograd's forms of a 3x3 convolution gain over the direct one, by size (6 minutes).

Default programs of each form, with weights that were not read lately, measured as in a session but at length; three
rounds, each in new processes. The gain is the time of the direct program over that of the better sketch of the form.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.runner import run

FORMS = ("winograd2", "winograd4")
OTHER = "other"
# Channels, filters, height, width.
SIZES = {
    "the rule was made from": (
        (64, 64, 56, 56),
        (256, 256, 56, 56),
        (128, 128, 28, 28),
        (512, 512, 28, 28),
        (256, 256, 14, 14),
        (512, 512, 14, 14),
        (256, 256, 7, 7),
        (512, 512, 7, 7),
    ),
    OTHER: (
        (64, 96, 35, 35),
        (192, 192, 17, 17),
        (48, 192, 13, 13),
        (16, 64, 55, 55),
        (48, 80, 23, 31),
        (128, 32, 14, 14),
    ),
}
QUICK = {"sizes": 1, "rounds": 1}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, help="only the first so many of each kind")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from benchmarks.racing import EVERYTHING
    from slipstream.machine.target import resolve_target
    from slipstream.measure import Candidate, MeasureConfig, cpu_measurer, reference_text
    from slipstream.program.space import Space
    from tests.graph.test_winograd import Convolution, function

    target = resolve_target()
    for kind, sizes in SIZES.items():
        for channels, filters, height, width in sizes[: options.sizes]:
            name = f"{channels} → {filters}, {height}x{width}"
            func = function(Convolution(height, width, channels, filters))
            space = Space(name, func, target)
            realized = {f"{n} {program.sketch.form}": space.realize(program) for n, program in enumerate(space.own)}
            candidates = [Candidate(name, one.text, label) for label, one in realized.items() if one is not None]
            rounds = []
            for _ in range(options.rounds):
                with cpu_measurer(target, {name: reference_text(func)}, MeasureConfig(racing=EVERYTHING)) as measurer:
                    rounds.append({m.program.label: m.median for m in measurer.measure(candidates)})
            form = space.default.sketch.form
            yield name, {"kind": kind, "default_form": form, "rounds": rounds}


def gains(result: Mapping[str, Any], form: str) -> list[float]:
    """How many times as fast as the direct program the better sketch of that form is, in each round."""
    found = []
    for timed in result["rounds"]:
        by_form = {label: seconds for label, seconds in timed.items() if label.split(" ")[1] == form}
        direct = min(seconds for label, seconds in timed.items() if label.split(" ")[1] == "")
        if by_form:
            found.append(direct / min(by_form.values()))
    return found


def markdown(data: Mapping[str, Any]) -> str:
    lines = ["| channels → filters, size | F(2x2) | F(4x4) | untuned |", "| --- | --- | --- | --- |"]
    for kind in SIZES:
        if kind == OTHER:
            lines.append("| *not what the rule was made from:* | | | |")
        for name, result in data.items():
            if result["kind"] == kind:
                cells = [_spread(gains(result, form), bold=form == result["default_form"]) for form in FORMS]
                lines.append(f"| {name} | {' | '.join(cells)} | {result['default_form'] or 'direct'} |")
    return "\n".join([*lines, "", "Times as fast as the direct program; bold is what the rule takes.", ""])


def _spread(values: list[float], *, bold: bool) -> str:
    if not values:
        return ""
    text = f"{median(values):.2f}"
    return (f"**{text}**" if bold else text) + f" ({min(values):.2f} - {max(values):.2f})"


if __name__ == "__main__":
    run(__name__)
