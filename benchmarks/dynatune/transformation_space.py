"""How fast a convolution is by two of its knobs, all others fixed (the paper's figure 3).

    python -m benchmarks.dynatune.transformation_space             # measures, 1 to 3 minutes on an idle machine
    python -m benchmarks.dynatune transformation_space             # the figure from what was measured

The knobs are the tile sizes along output and input channels of a 3x3 convolution of ResNet-18 in MetaSchedule's sketch
with the most tiles. The others have the values of the fastest of some random programs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dynatune.curves import CURVES, RecordingError
from benchmarks.dynatune.plotting import panels, save
from benchmarks.dynatune.replays import Study

MEASURED = CURVES / "transformation_space.json"
_RANDOM = 16
_STEEP = 0.2  # neighbours that differ by more than this: the paper's jump


def measure(threads: int | None = None, random: int = _RANDOM) -> dict[str, Any]:
    """GFLOP/s of every pair of tile sizes; none where a program failed."""
    from benchmarks.candidates import pick_operators
    from benchmarks.machine import describe_machine
    from slipstream.machine.target import resolve_target
    from slipstream.measure import Candidate, cpu_measurer, reference_text
    from slipstream.measure.config import EVALUATIONS, MeasureConfig
    from slipstream.program.decisions import Tile, divisors
    from slipstream.program.space import Program, StockSpace

    load = os.getloadavg()
    target = resolve_target("cpu", threads)
    operator = pick_operators(target, ("conv3x3",))["conv3x3"]
    space = StockSpace(operator.key, operator.func, target)
    example = max(space.stock, key=lambda e: sum(isinstance(p, Tile) for p in space.points(e)))
    points = space.points(example)
    channels = 128
    whole = {n: p for n, p in enumerate(points) if isinstance(p, Tile) and p.extent == channels}
    output = max(whole, key=lambda n: whole[n].parts)
    reduced = min(whole, key=lambda n: whole[n].parts)
    rng = np.random.default_rng(0)

    def seconds_of(programs: dict[Any, Program]) -> dict[Any, float]:
        realized = {label: space.realize(program) for label, program in programs.items()}
        candidates = [Candidate(operator.key, r.text, str(label)) for label, r in realized.items() if r is not None]
        config = MeasureConfig(racing=EVALUATIONS["adatune"])  # which gives no program up
        with cpu_measurer(target, {operator.key: reference_text(operator.func)}, config) as measurer:
            found = {m.program.label: m.median for m in measurer.measure(candidates) if m.failure is None}
        return {label: found.get(str(label), math.nan) for label in programs}

    drawn = {n: replace(example, decisions=space.draw_decisions(example, rng)) for n in range(random)}
    times = seconds_of(drawn)
    fixed = drawn[min(times, key=lambda n: times[n] if math.isfinite(times[n]) else math.inf)]

    def tiled(out: int, into: int) -> Program:
        values = list(fixed.decisions)
        values[output] = (channels // out, *(1,) * (whole[output].parts - 2), out)
        values[reduced] = (channels // into, *(1,) * (whole[reduced].parts - 2), into)
        return replace(fixed, decisions=tuple(values))

    sizes = [d for d in divisors(channels) if d <= min(whole[n].most_innermost for n in (output, reduced))]
    grid = seconds_of({(out, into): tiled(out, into) for out in sizes for into in sizes})
    rate = [[operator.flops / grid[out, into] / 1e9 for into in sizes] for out in sizes]
    return {
        "operator": operator.name,
        "sizes": sizes,
        "gflops": [[round(v, 3) if math.isfinite(v) else None for v in row] for row in rate],
        "about": {**describe_machine(), "threads": target.threads, "load": load, "load_at_end": os.getloadavg()},
    }


def make(study: Study) -> list[Path]:
    """The figure."""
    data = read(study.curves / MEASURED.name)
    figure, axes = panels([data["operator"]])
    (axis,) = axes.values()
    rate = np.array(data["gflops"], dtype=float)
    sizes = data["sizes"]
    shown = axis.imshow(rate, origin="lower", cmap="viridis")
    axis.set_xticks(range(len(sizes)), sizes)
    axis.set_yticks(range(len(sizes)), sizes)
    axis.grid(visible=False)
    axis.set(xlabel="tile along input channels", ylabel="tile along output channels")
    figure.colorbar(shown, ax=axis, label="GFLOP/s")
    at = [(y, x) for y in range(len(sizes)) for x in range(len(sizes)) if np.isfinite(rate[y, x])]
    rows = [(sizes[y], sizes[x], float(rate[y, x])) for y, x in at]
    return save(figure, study.figures, "transformation_space", ("output_tile", "input_tile", "gflops"), rows)


def read(path: Path = MEASURED) -> dict[str, Any]:
    """What was measured."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordingError(
            f"{path} cannot be read ({error}): measure it with 'python -m benchmarks.dynatune.transformation_space'"
        ) from error
    return content


def findings(data: dict[str, Any]) -> dict[str, float]:
    """How uneven the space is: steps of one knob that change the speed by more than 20 %, and local maxima."""
    rate = np.array(data["gflops"], dtype=float)
    ratio = np.concatenate([(rate[1:] / rate[:-1]).ravel(), (rate[:, 1:] / rate[:, :-1]).ravel()])
    ratio = np.maximum(ratio, 1 / ratio)
    ratio = ratio[np.isfinite(ratio)]
    padded = np.pad(np.nan_to_num(rate), 1)
    around = np.stack([padded[2:, 1:-1], padded[:-2, 1:-1], padded[1:-1, 2:], padded[1:-1, :-2]])
    peaks = int(np.sum(np.nan_to_num(rate) > around.max(axis=0)))
    return {
        "programs": int(np.isfinite(rate).sum()),
        "fastest over slowest": float(np.nanmax(rate) / np.nanmin(rate)),
        "steps of more than 20 %": float(np.mean(ratio > 1 + _STEEP)),
        "local maxima": peaks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="that programs run on [all cores]; 1 on a busy machine")
    parser.add_argument("--output", type=Path, default=MEASURED)
    parser.add_argument("--quick", action="store_true", help="fewer random programs")
    options = parser.parse_args()
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    options.output.write_text(json.dumps(measure(options.threads, 4 if options.quick else _RANDOM), indent=1) + "\n")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
