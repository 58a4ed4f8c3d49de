"""How a session tunes. `EFFORTS` and `PRESETS` are the whole truth about what those words mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from slipstream.errors import SlipstreamError

# What can be left out of a session, and what it does.
PARTS: Mapping[str, str] = MappingProxyType(
    {
        "own_sketches": "sketches and default programs of ours, beside MetaSchedule's; else a random one comes first",
        "relatives": "programs of similar operators are carried over",
        "keep": "carrying over: tiles stay, moved to the nearest divisors",
        "scale": "carrying over: tiles grow with the extent",
        "random": "some of the posterior's centres are drawn at random",
        "posterior": "measurements update the distribution that programs are drawn from",
        "guess": "trees over decisions say which of the drawn programs to measure",
        "pretraining": "these trees know the relatives' measurements",
        "followers": "the gain of a family's prior counts what its followers would gain",
        "news": "a relative's improvement makes an operator worth another slot",
        "shared_curves": "an operator with few trials borrows its relatives' tuning curves",
        "potential": "an operator that is slow for its family promises more",
    }
)
_SCHEDULER_OPTIONS = {"shared_curves": "share_curves", "potential": "heed_potential"}


class SettingsError(SlipstreamError):
    """A setting that does not exist or makes no sense."""


@dataclass(frozen=True)
class Settings:
    """`slot_trials` programs are measured in a slot; an operator is left alone after `patience_trials` without gain,
    and after `most_trials` in any case.

    `families` says how operators are grouped. `without` names parts (of `PARTS`) to leave out, to see what each is
    worth. `population` and `generations` are evolutionary search's. `in_flight` operators have a slot at a time.
    `deterministic` makes proposals repeatable bit for bit where a search is quicker without.
    """

    scheduler: str = "dynatune"
    search: str = "diffusion"
    cost: str = "incremental"
    families: str = "anchor"
    without: tuple[str, ...] = ()
    slot_trials: int = 8
    patience_trials: int = 64
    most_trials: int | None = None
    population: int = 128
    generations: int = 2
    in_flight: int = 1
    seed: int = 0
    deterministic: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Settings:
        known = {field.name for field in fields(cls)}
        settings = cls(**{name: value for name, value in values.items() if name in known})
        return replace(settings, without=tuple(settings.without))

    def scheduler_options(self) -> dict[str, bool]:
        return {option: False for part, option in _SCHEDULER_OPTIONS.items() if part in self.without}


EFFORTS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "quick": MappingProxyType({"slot_trials": 6, "patience_trials": 24, "population": 64, "generations": 2}),
        "normal": MappingProxyType({"slot_trials": 8, "patience_trials": 64, "population": 128, "generations": 2}),
        "max": MappingProxyType({"slot_trials": 32, "patience_trials": 320, "population": 512, "generations": 4}),
    }
)

# What differs on a GPU, whose programs are built on all cores while others run.
ON_GPU: Mapping[str, int] = MappingProxyType({"in_flight": 6})
# What DynaTune leaves out there: an operator too small to fill a GPU never gets as fast as its relatives, and would be
# given one slot after another for it. See docs/gpu.md.
_NOT_ON_GPU = ("potential",)

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
    seed: int = 0,
    deterministic: bool = False,
    others: Mapping[str, Any] = MappingProxyType({}),
    gpu: bool = False,
) -> Settings:
    """What a `gpu` needs first, then effort, then the preset, then what was asked for by name, then `others`, which may
    be any field of `Settings`; each overrules the one before.
    """
    if effort not in EFFORTS:
        raise SettingsError(f"there is no effort {effort!r}; choose one of {', '.join(EFFORTS)}")
    if preset is not None and preset not in PRESETS:
        raise SettingsError(f"there is no preset {preset!r}; choose one of {', '.join(PRESETS)}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise SettingsError(f"a seed is a whole number from 0, not {seed!r}")
    basis = replace(Settings(seed=seed, deterministic=deterministic), **ON_GPU if gpu else {})  # type: ignore[arg-type]
    settings = replace(basis, **EFFORTS[effort])  # type: ignore[arg-type]
    if preset is not None:
        settings = replace(settings, **PRESETS[preset])
    chosen = {"scheduler": scheduler, "search": search, "cost": cost}
    settings = replace(settings, **{name: value for name, value in chosen.items() if value is not None})  # type: ignore[arg-type]
    if unknown := set(others) - {field.name for field in fields(Settings)}:
        raise SettingsError(f"there is no setting {min(unknown)!r}; choose from the fields of Settings")
    settings = replace(settings, **others)
    without = _parts(settings.without)
    if gpu and settings.scheduler == Settings.scheduler:
        without = tuple(dict.fromkeys((*without, *_NOT_ON_GPU)))
    settings = replace(settings, without=without)
    _check_names(settings)
    return settings


def _parts(names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise SettingsError(f"without takes a list of parts, not {names!r}")
    if unknown := [name for name in names if name not in PARTS]:
        raise SettingsError(f"there is no part {unknown[0]!r} to leave out; choose from {', '.join(PARTS)}")
    return tuple(names)


def _check_names(settings: Settings) -> None:
    from slipstream import plugins

    for kind in ("scheduler", "search", "cost"):
        plugins.check_name(kind, getattr(settings, kind))
    # Not every scheduler has these parts: better said now than when the session has begun.
    plugins.check_options("scheduler", settings.scheduler, settings.scheduler_options())
