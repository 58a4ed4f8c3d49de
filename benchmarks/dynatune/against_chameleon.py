"""DynaTune against better tuners of single operators (the paper's figure 10), from recordings of each.

Chameleon and AdaTune tune one operator after the other. Replayed on their recordings are that order and DynaTune, the
published one and ours. All are timed until they reach the same latency: 1 % above the highest at which a recording of
the model and seed ends, which all of them come to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from benchmarks.dynatune.curves import Recording, read_all
from benchmarks.dynatune.plotting import band, draw_band, legend, lines, panels, save
from benchmarks.dynatune.replays import Study
from benchmarks.dynatune.tuners import TUNERS, folder_of
from benchmarks.spread import table
from slipstream.schedulers.replay import Replay
from slipstream.statistics import median

# Label -> the tuner whose recordings are replayed, and the policy.
COMPARED = {
    "DynaTune as in the paper": ("autotvm", "dynatune_paper"),
    TUNERS["autotvm"][0]: ("autotvm", "sequential"),
    TUNERS["chameleon"][0]: ("chameleon", "sequential"),
    TUNERS["adatune"][0]: ("adatune", "sequential"),
    "DynaTune on Chameleon": ("chameleon", "dynatune_paper"),
    "DynaTune on AdaTune": ("adatune", "dynatune_paper"),
    "ours on Chameleon": ("chameleon", "dynatune"),
}
_SHOWN = tuple(COMPARED)[:5]
_WITHIN = 0.01
_POINTS = 240


def make(study: Study) -> list[Path]:
    """The figure, `dynatune_tuners.json` and a page with the table."""
    tuned = {tuner: _study(study, tuner) for tuner in TUNERS}
    figure, axes = panels(sorted(set.intersection(*(set(one.models) for one in tuned.values()))))
    rows: list[tuple[object, ...]] = []
    for model, axis in axes.items():
        runs = {label: tuned[tuner].runs(model, policy) for label, (tuner, policy) in COMPARED.items()}
        end = max(run.times[-1] for label in _SHOWN for run in runs[label])
        grid = np.linspace(0, end, _POINTS).tolist()
        for label, line in zip(_SHOWN, lines(), strict=False):
            points = band([[1e3 * run.latency_at(t) for t in grid] for run in runs[label]])
            draw_band(axis, grid, points, label, line)
            rows += [(model, label, at, *point) for at, point in zip(grid, points, strict=True)]
        axis.set(xlabel="tuning time, s", ylabel="model latency, ms")
    legend(figure, axes)
    made = save(
        figure,
        study.figures,
        "against_chameleon",
        ("model", "tuner", "seconds", "latency_ms", "low_ms", "high_ms"),
        rows,
    )
    content: dict[str, Any] = {
        "within": _WITHIN,
        "recordings": [
            {"tuner": tuner, "name": r.name, "operators": len(r.operators), **r.about}
            for tuner, one in tuned.items()
            for r in one.recordings
        ],
        "seconds": {model: seconds(tuned, model) for model in axes},
        "trials": {model: {t: _trials(one.models[model]) for t, one in tuned.items()} for model in axes},
    }
    pairs = {ours: [other for other in COMPARED if other != ours] for ours in COMPARED}
    content["times_sooner"] = {
        ours: {other: round(times_sooner(content, ours, other), 4) for other in others}
        for ours, others in pairs.items()
    }
    study.results.mkdir(parents=True, exist_ok=True)
    data, page = study.results / "dynatune_tuners.json", study.results / "dynatune_tuners.md"
    data.write_text(json.dumps(content, indent=1) + "\n")
    page.write_text(markdown(content))
    return [*made, data, page]


def _study(study: Study, tuner: str) -> Study:
    recordings = read_all(folder_of(tuner, study.curves / "tuners"))
    return Study(recordings, study.figures, study.results, study.seeds, study.slot_trials)


def _trials(recordings: list[Recording]) -> float:
    return median([sum(o.trial[-1] for o in r.operators) for r in recordings])


def seconds(tuned: Mapping[str, Study], model: str) -> dict[str, list[float]]:
    """Seconds until the common latency, of each seed of the recordings (the median over orders of the operators)."""
    by_seed = {t: {r.seed: r for r in one.models[model]} for t, one in tuned.items()}
    found: dict[str, list[float]] = {label: [] for label in COMPARED}
    for seed in sorted(set.intersection(*(set(own) for own in by_seed.values()))):
        runs = {
            label: tuned[tuner].runs_of(by_seed[tuner][seed], policy) for label, (tuner, policy) in COMPARED.items()
        }
        goal = (1 + _WITHIN) * max(run.lowest for own in runs.values() for run in own)
        for label, own in runs.items():
            found[label].append(round(median([time_to(run, goal) for run in own]), 3))
    return found


def time_to(run: Replay, latency: float) -> float:
    """When the model was that fast, which it is at the latest at the end."""
    return next(at for at, value in zip(run.times, run.latency, strict=True) if value <= latency)


def times_sooner(content: Mapping[str, Any], ours: str, other: str) -> float:
    """Geometric mean over models and seeds of the other's seconds over ours; what needs no time is left out."""
    pairs = [p for by in content["seconds"].values() for p in zip(by[ours], by[other], strict=True)]
    ratios = [there / here for here, there in pairs if here > 0 and there > 0]
    return geometric_mean(ratios) if ratios else float("nan")


def markdown(content: Mapping[str, Any]) -> str:
    """The same for people."""
    models = content["seconds"]
    rows = [[label, *(f"{median(by[label]):.0f}" for by in models.values())] for label in COMPARED]
    about = content["recordings"]
    loads = [load for r in about for load in (r["load"][0], r["load_at_end"][0])]
    seeds = {model: len(next(iter(by.values()))) for model, by in models.items()}
    trials = {model: " / ".join(f"{by[t]:.0f}" for t in TUNERS) for model, by in content["trials"].items()}
    return "\n".join(
        [
            "# DynaTune against Chameleon and AdaTune",
            "",
            "Seconds until the latency that all reach, medians:",
            "",
            *table(["", *models], rows),
            "",
            f"Seeds: {', '.join(f'{model} {count}' for model, count in seeds.items())}. Recorded with programs on "
            f"{about[0]['options']['threads'] or 'all'} thread(s), at a load average of {min(loads):.0f} to "
            f"{max(loads):.0f} on {about[0]['machine']['cores']} cores. Trials measured by "
            f"{', '.join(TUNERS)}: " + "; ".join(f"{model} {said}" for model, said in trials.items()) + ".",
            "",
        ]
    )
