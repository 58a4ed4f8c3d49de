"""Time of each operator against the machine's limit, before tuning and after (4 minutes a model).

An operator takes at least the time of its arithmetic at the measured peak, and of reading and writing its tensors once
at the measured bandwidth, as `slipstream doctor` measures them: its bound is the longer of the two. Tensors stay in
caches from one operator to the next, so bandwidth is measured for several amounts of data, and the nearest amount that
is not larger counts. A 3x3 convolution has a bound for its direct form and one for each of Winograd's, whose transforms
count as free here; the least is taken, whichever form a program has.

The model is tuned for --budget; `--sessions build/latency` takes those that `benchmarks.latency` tuned.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.runner import run
from benchmarks.spread import table

QUICK = {"models": ["tiny_cnn"], "budget": "20s"}
SIZES = tuple(2**power for power in (16, 18, 20, 22, 24, 26, 29))  # bytes; the last is what doctor measures
_SECONDS = 0.5  # of measuring each bandwidth


def arguments(parser: argparse.ArgumentParser) -> None:
    models = ["resnet18", "squeezenet1_1", "mobilenet_v2", "transformer_encoder"]
    parser.add_argument("--models", nargs="+", default=models)
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16"])
    parser.add_argument("--sessions", type=Path, help="take FOLDER/MODEL/tuned, instead of tuning")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from benchmarks.ended_session import EndedSession, tune_apart
    from slipstream.machine.speed import measure_bandwidth, measure_peak_flops
    from slipstream.machine.target import resolve_target

    target = resolve_target("cpu", dtype=options.dtype)
    short = "" if options.dtype == "float32" else options.dtype
    for model in options.models:
        if options.sessions:
            session = EndedSession(options.sessions / model / "-".join(filter(None, ("tuned", short))))
        else:
            chosen = {"budget": options.budget, "seed": options.seed, "dtype": options.dtype}
            session = tune_apart(f"zoo:{model}", options.work / f"{model} {short}".strip(), **chosen)
        yield (
            f"{model} {short}".strip(),
            {
                "session": session.directory.session,
                "peak_flops": measure_peak_flops(target),
                "bandwidth": {str(size): measure_bandwidth(target, _SECONDS, size) for size in SIZES},
                "threads": target.threads,
                "end_to_end": session.record.result["end_to_end"],
                "operators": list(operators_of(session)),
            },
        )


def operators_of(session: Any) -> Iterator[dict[str, Any]]:
    """What each operator computes and moves in each of its forms, and what its programs took."""
    from slipstream.session.directory import open_store

    best = session.best()
    with open_store(session.directory, read_only=True) as store:
        for key, known in session.history.operators.items():
            operator = store.operator(key)
            yield {
                "name": operator.name,
                "weight": known.weight,
                "forms": forms_of(operator),
                "default": known.start if math.isfinite(known.start) else None,
                "tuned": best[key].seconds if key in best else None,
                "tuned_form": session.program(best[key]).sketch.form if key in best else "",
            }


def forms_of(operator: Any) -> dict[str, dict[str, int]]:
    """Form -> FLOPs and bytes of a call; the empty name is the direct form."""
    import tvm

    from slipstream.graph.forms import DIRECT, TILES
    from slipstream.graph.winograd.form import find_convolution

    forms = {DIRECT: {"flops": operator.flops, "bytes": operator.bytes}}
    convolution = find_convolution(tvm.ir.load_json(operator.module)["main"])
    for form, tile in TILES.items() if convolution is not None else ():
        weights = convolution.weight_bytes(tile)
        products = convolution.tiles(tile) * weights // (2 if convolution.is_half else 4)
        plain = convolution.weight_bytes(1)  # 3 x 3 of them, as they are
        forms[form] = {
            "flops": operator.flops + 2 * (products - convolution.multiplications),
            "bytes": operator.bytes + weights - plain,
        }
    return forms


class Bound:
    """The least seconds of an operator's call, by which form, and what sets them."""

    def __init__(self, operator: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
        forms = operator["forms"].items()
        arithmetic = {form: cost["flops"] / machine["peak_flops"] for form, cost in forms}
        moving = {form: cost["bytes"] / bandwidth(machine, cost["bytes"]) for form, cost in forms}
        self.form = min(arithmetic, key=lambda form: max(arithmetic[form], moving[form]))
        self.seconds = max(arithmetic[self.form], moving[self.form])
        self.by = "arithmetic" if arithmetic[self.form] >= moving[self.form] else "bytes"
        self.arithmetic = min(arithmetic.values())


def bandwidth(machine: Mapping[str, Any], moved: int) -> float:
    """Bytes/s for the largest measured amount that is not above `moved`."""
    measured = {int(size): rate for size, rate in machine["bandwidth"].items()}
    return float(measured[max((size for size in measured if size <= moved), default=min(measured))])


def total(data: Mapping[str, Any], seconds: Sequence[float]) -> float:
    """Over a run of the model."""
    return sum(operator["weight"] * each for operator, each in zip(data["operators"], seconds, strict=True))


def sums(data: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of a run of the model, as the sum over its operators."""
    timed = {**data, "operators": [o for o in data["operators"] if o["default"] and o["tuned"]]}
    bounds = [Bound(operator, data) for operator in timed["operators"]]
    return {
        "arithmetic": total(timed, [bound.arithmetic for bound in bounds]),
        "bound": total(timed, [bound.seconds for bound in bounds]),
        "default": total(timed, [operator["default"] for operator in timed["operators"]]),
        "tuned": total(timed, [operator["tuned"] for operator in timed["operators"]]),
    }


def markdown(data: Mapping[str, Any]) -> str:
    rows = []
    for model, result in data.items():
        found = sums(result)
        cells = [f"{1e3 * found['arithmetic']:.2f}", f"{1e3 * found['bound']:.2f}"]
        for side in ("default", "tuned"):
            cells += [f"{1e3 * found[side]:.2f}", f"{found['bound'] / found[side]:.0%}"]
        rows.append([model, *cells, f"{1e3 * result['end_to_end']:.2f}"])
    columns = ["model", "arithmetic alone, ms", "bound, ms", "default programs", "share", "tuned", "share"]
    lines = table([*columns, "whole model, ms"], rows)
    lines += ["", "Sums over operators, in ms; a share is the bound divided by the time. Measured limits:", ""]
    for model, result in data.items():
        rates = [f"{_amount(int(size))} {rate / 1e9:.0f}" for size, rate in result["bandwidth"].items()]
        peak = f"{result['peak_flops'] / 1e9:.0f} GFLOP/s on {result['threads']} cores"
        lines.append(f"- {model} (tuned as session {result['session']}): {peak}; GB/s of {', of '.join(rates)}")
    for model, result in data.items():
        lines += ["", f"### {model}", "", *_table(result)]
    return "\n".join(lines) + "\n"


def _amount(size: int) -> str:
    return f"{size >> 10} KiB" if size < 2**20 else f"{size >> 20} MiB"


def _table(result: Mapping[str, Any]) -> list[str]:
    """One line per operator, ordered by the difference between its time and its bound."""
    columns = ["operator", "times", "bound, µs", "set by", "default", "tuned", "lost, ms", "tuned form"]
    bounds = [(o, Bound(o, result)) for o in result["operators"] if o["default"] and o["tuned"]]
    rows = []
    for operator, bound in sorted(bounds, key=lambda row: row[0]["weight"] * (row[1].seconds - row[0]["tuned"])):
        set_by = f"{bound.by}{f' ({bound.form})' if bound.form else ''}"
        shares = [f"{bound.seconds / operator[side]:.0%}" for side in ("default", "tuned")]
        lost = f"{1e3 * operator['weight'] * (operator['tuned'] - bound.seconds):.2f}"
        cells = [operator["name"], operator["weight"], f"{1e6 * bound.seconds:.1f}", set_by, *shares]
        rows.append([*cells, lost, operator["tuned_form"] or "direct"])
    return table(columns, rows)


if __name__ == "__main__":
    run(__name__)
