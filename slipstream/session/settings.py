"""How a session tunes. `EFFORTS` and `PRESETS` are the whole truth about what those words mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from slipstream.diffusion.parts import Parts, PartsError, describe_parts
from slipstream.errors import SlipstreamError

PARTS: Mapping[str, str] = MappingProxyType(describe_parts())  # what can be left out of a session, and what it does
_SCHEDULER_OPTIONS = {"potential": "heed_potential"}


class SettingsError(SlipstreamError):
    """A setting that does not exist or makes no sense."""


@dataclass(frozen=True)
class Settings:
    """`slot_trials` programs are measured in a slot; an operator is left alone after `patience_trials` without gain,
    and after `most_trials` in any case.

    `families` says how operators are grouped. `parts` says which parts of the method are used; by name and in JSON it
    is `without`, the list of those left out. `population` and `generations` are evolutionary search's. `in_flight`
    operators have a slot at a time, and programs for `searches` of them are searched for at a time. `evaluation` says
    when a program has been timed enough, one of `slipstream.measure.config.EVALUATIONS`. `deterministic` makes
    proposals repeatable bit for bit where a search is quicker without. `priors` is a file of `slipstream store distil`
    for operators that no stored session has tuned relatives of, "shipped" the one of the package, None none.
    """

    scheduler: str = "dynatune"
    search: str = "diffusion"
    cost: str = "incremental"
    evaluation: str = "racing"
    families: str = "anchor"
    parts: Parts = field(default_factory=Parts)
    slot_trials: int = 8
    patience_trials: int = 64
    most_trials: int | None = None
    population: int = 128
    generations: int = 2
    in_flight: int = 1
    searches: int = 1
    seed: int = 0
    deterministic: bool = False
    priors: str | None = "shipped"

    def to_json(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {("without" if k == "parts" else k): (v.left_out if k == "parts" else v) for k, v in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Settings:
        known = {f.name for f in fields(cls)} - {"parts"}
        settings = cls(**{name: value for name, value in values.items() if name in known})
        return settings.leaving_out(values.get("without", ()))

    def leaving_out(self, names: object) -> Settings:
        """The same without the parts of these `names`."""
        try:
            return replace(self, parts=Parts.leaving_out(names))
        except PartsError as error:
            raise SettingsError(str(error)) from None

    def scheduler_options(self) -> dict[str, bool]:
        return {option: False for part, option in _SCHEDULER_OPTIONS.items() if not getattr(self.parts, part)}


EFFORTS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "quick": MappingProxyType({"slot_trials": 6, "patience_trials": 24, "population": 64, "generations": 2}),
        "normal": MappingProxyType({"slot_trials": 8, "patience_trials": 64, "population": 128, "generations": 2}),
        "max": MappingProxyType({"slot_trials": 32, "patience_trials": 320, "population": 512, "generations": 4}),
    }
)

# What a search takes of the time in which programs are built, and how many slots' programs are in hand then, grow with
# the cores. Up to `_CORES_A_SEARCH` cores one search at a time keeps up; see docs/measuring.md.
_CORES_A_SEARCH = 4
_IN_HAND = 2.0  # programs for each core: those being built and those that wait for their run


def on_cores(cores: int, slot_trials: int) -> dict[str, int]:
    """What differs on a CPU of so many cores: slots enough to build on all while the next are searched for."""
    searches = math.ceil(cores / _CORES_A_SEARCH)
    return {"in_flight": searches + math.ceil(_IN_HAND * cores / slot_trials), "searches": searches}


# A GPU runs a program in some 20 ms, while others are built: this much keeps it busy, however many cores there are.
_SLOTS_ON_GPU, _MOST_SEARCHES_ON_GPU = 6, 4


def on_gpu(cores: int) -> dict[str, int]:
    """What differs on a GPU whose programs are built and searched for on so many cores (0: unknown)."""
    searches = min(max(1, math.ceil(cores / _CORES_A_SEARCH)), _MOST_SEARCHES_ON_GPU)
    return {"in_flight": _SLOTS_ON_GPU + searches // 2, "searches": searches}


# A fleet builds and runs more at a time than one operator has programs for.
ON_FLEET: Mapping[str, int] = MappingProxyType({"in_flight": 32, "searches": 8})
# The algorithm of TVM's MetaSchedule at its own defaults, on our measurer: the baseline of every comparison.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "metaschedule": MappingProxyType(
            {
                "scheduler": "gradient",
                "search": "evolutionary",
                "cost": "metaschedule",
                "in_flight": 1,
                "slot_trials": 64,
                "patience_trials": 1_000_000,
                "population": 512,
                "generations": 4,
            }
        )
    }
)


def make_settings(
    *,
    preset: str | None = None,
    effort: str = "normal",
    scheduler: str | None = None,
    search: str | None = None,
    cost: str | None = None,
    evaluation: str | None = None,
    seed: int = 0,
    deterministic: bool = False,
    others: Mapping[str, Any] = MappingProxyType({}),
    gpu: bool = False,
    fleet: bool = False,
    cores: int = 0,
) -> Settings:
    """What a `gpu`, a `fleet` or this machine's `cores` need first, then effort, then the preset, then what was asked
    for by name, then `others`, which may be any field of `Settings`; each overrules the one before.
    """
    if effort not in EFFORTS:
        raise SettingsError(f"there is no effort {effort!r}; choose one of {', '.join(EFFORTS)}")
    if preset is not None and preset not in PRESETS:
        raise SettingsError(f"there is no preset {preset!r}; choose one of {', '.join(PRESETS)}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise SettingsError(f"a seed is a whole number from 0, not {seed!r}")
    slot_trials, cores = EFFORTS[effort]["slot_trials"], 0 if deterministic else cores
    here = on_gpu(cores) if gpu else on_cores(cores, slot_trials) if cores else {}
    needed = ON_FLEET if fleet else here
    basis = replace(Settings(seed=seed, deterministic=deterministic), **needed)  # type: ignore[arg-type]
    settings = replace(basis, **EFFORTS[effort])  # type: ignore[arg-type]
    if preset is not None:
        settings = replace(settings, **PRESETS[preset])
    chosen = {"scheduler": scheduler, "search": search, "cost": cost, "evaluation": evaluation}
    settings = replace(settings, **{name: value for name, value in chosen.items() if value is not None})  # type: ignore[arg-type]
    if unknown := set(others) - set(settings.to_json()):
        raise SettingsError(f"there is no setting {min(unknown)!r}; choose from {', '.join(settings.to_json())}")
    settings = replace(settings, **{name: value for name, value in others.items() if name != "without"})
    settings = settings.leaving_out(others.get("without", ()))
    _check_names(settings)
    return settings


def _check_names(settings: Settings) -> None:
    from slipstream import plugins
    from slipstream.measure.config import EVALUATIONS

    for kind in ("scheduler", "search", "cost"):
        plugins.check_name(kind, getattr(settings, kind))
    if settings.evaluation not in EVALUATIONS:
        raise SettingsError(f"there is no evaluation {settings.evaluation!r}; choose one of {', '.join(EVALUATIONS)}")
    # Not every scheduler has these parts: better said now than when the session has begun.
    plugins.check_options("scheduler", settings.scheduler, settings.scheduler_options())
