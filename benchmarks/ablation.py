"""What each part of the method is worth: the same session with one part left out, in turn.

    python -m benchmarks.ablation [--model resnet18] [--seeds 3] [--budget 60s] [--work build/ablation]
    python -m benchmarks.ablation --target cuda --budget 40 --variants "everything,tiles kept only"
    python -m benchmarks.ablation --table     # the table again, from the raw results alone

All variants have the same wall clock. They run one after the other, seed by seed, each in its own process; on a
machine with many cores `--pairs 8` runs eight at a time, each on two cores of its own. Compared is the sum of
operators: what the search knows, without the noise of whole models. Takes variants x seeds x budget. Results on a GPU
are kept apart, in gpu_ablation.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.machine import describe_machine
from slipstream.statistics import median

RESULTS = Path(__file__).parent / "results"
# Name -> options of `slipstream.tune`.
VARIANTS: dict[str, dict[str, Any]] = {
    "everything": {},
    "no relatives": {"settings": {"without": ["relatives"]}},
    "families by sequence": {"settings": {"families": "sequence"}},
    "families by sketch": {"settings": {"families": "sketch"}},
    "tiles kept only": {"settings": {"without": ["scale", "random"]}},
    "tiles scaled only": {"settings": {"without": ["keep", "random"]}},
    "tiles random only": {"settings": {"without": ["keep", "scale"]}},
    "posterior not updated": {"settings": {"without": ["posterior"]}},
    "no guess": {"settings": {"without": ["guess"]}},
    "guess not pre-trained": {"settings": {"without": ["pretraining"]}},
    "scheduler blind to families": {"settings": {"without": ["followers", "news", "shared_curves", "potential"]}},
    "no followers": {"settings": {"without": ["followers"]}},
    "no news": {"settings": {"without": ["news"]}},
    "no shared curves": {"settings": {"without": ["shared_curves"]}},
    "no potential": {"settings": {"without": ["potential"]}},
    "round robin for DynaTune": {"scheduler": "round_robin"},
    "gradient for DynaTune": {"scheduler": "gradient"},
}
_NEAR = 1.05


def at(run: Mapping[str, Any], seconds: float) -> float:
    """Sum of operators after `seconds` of a run."""
    return min((latency for when, latency in run["curve"] if when <= seconds), default=math.inf)


def time_to(run: Mapping[str, Any], latency: float) -> float:
    return min((when for when, reached in run["curve"] if reached <= latency), default=math.inf)


def markdown(raw: Mapping[str, Any]) -> str:
    """The tables, from raw results alone.

    A ratio is to the whole method's run with the same seed. What is left of the untuned latency is a run's own: the
    default programs are the same in all, so that takes out some of what the machine did meanwhile.
    """
    lines = ["# What each part is worth"]
    for model, result in raw["models"].items():
        whole = result["runs"]["everything"]
        budget, half = result["budget"], result["budget"] / 2
        lines += ["", f"## {model}, {budget:g} s, {len(whole)} seeds", ""]
        lines += [f"| variant | latency after {half:g} s | after {budget:g} s | left of untuned | s to within 5 % |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        for name, runs in result["runs"].items():
            pairs = [(runs[seed], whole[seed]) for seed in whole if seed in runs]
            cells = [_spread([at(run, s) / at(full, s) for run, full in pairs]) for s in (half, budget)]
            cells.append(_spread([at(run, budget) / run["curve"][0][1] for run, _ in pairs]))
            there = [time_to(run, _NEAR * at(full, budget)) for run, full in pairs]
            reached = ", ".join(f"{seconds:.0f}" if math.isfinite(seconds) else "never" for seconds in there)
            lines.append(f"| {name} | {' | '.join(cells)} | {reached} |")
    return "\n".join(lines) + "\n"


def _spread(ratios: list[float]) -> str:
    return f"{median(ratios):.3f}" + (f" ({min(ratios):.3f} - {max(ratios):.3f})" if len(ratios) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--target", default="cpu", help="as of 'slipstream tune'")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each run")
    parser.add_argument("--pairs", type=int, default=1, help="runs at a time, each on two cores of its own")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--work", type=Path, default=Path("build/ablation"))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--table", action="store_true", help="only make the table from the raw results")
    options = parser.parse_args()
    on_gpu = options.target != "cpu"
    output = options.output or RESULTS / ("gpu_ablation.json" if on_gpu else "ablation.json")
    raw: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {"models": {}}
    if not options.table:
        from benchmarks.ended_session import tune_apart

        load = os.getloadavg()
        runs: dict[str, dict[str, Any]] = {name: {} for name in options.variants.split(",")}
        result = {**describe_machine(), "budget": options.budget, "pairs": options.pairs, "load": [load], "runs": runs}
        free = SimpleQueue[tuple[int, ...]]()
        for pair in range(options.pairs):
            free.put((2 * pair, 2 * pair + 1) if options.pairs > 1 else ())

        def run(name: str, seed: int) -> tuple[str, int, dict[str, Any]]:
            folder, cores = options.work / options.model / f"{name.replace(' ', '-')}-{seed}", free.get()
            chosen = {"seed": seed, "budget": options.budget, "target": options.target, **VARIANTS[name]}
            ended = tune_apart(f"zoo:{options.model}", folder, cores=cores, **chosen)
            free.put(cores)
            print(f"{name}, seed {seed}: {ended.latency() * 1e3:.2f} ms", flush=True)
            return name, seed, ended.to_json()

        with ThreadPoolExecutor(options.pairs) as pool:
            for done in [pool.submit(run, name, seed) for seed in range(options.seeds) for name in runs]:
                name, seed, row = done.result()
                runs[name][str(seed)] = row
                result["load"] = [load, os.getloadavg()]
                raw["models"][options.model] = result
                output.write_text(json.dumps(raw, separators=(",", ":")) + "\n")
    output.with_suffix(".md").write_text(markdown(raw))
    print(markdown(raw), end="")


if __name__ == "__main__":
    main()
