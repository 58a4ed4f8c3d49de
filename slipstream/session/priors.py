"""Which distilled priors a session starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from slipstream.diffusion.distilled import SHIPPED, ClassPriors, Priors, read_priors
from slipstream.machine.hardware import instruction_set
from slipstream.session.distil import machine_features
from slipstream.session.settings import Settings, SettingsError


def read_chosen_priors(choice: str | None) -> dict[str, ClassPriors]:
    """What the file that `Settings.priors` names has, by class of hardware."""
    if choice is None:
        return {}
    if not isinstance(choice, str):
        raise SettingsError(f"priors are a file, 'shipped' or None, not {choice!r}")
    path = SHIPPED if choice == "shipped" else Path(choice)
    return _read_once(path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=1)
def _read_once(path: Path, changed: int) -> dict[str, ClassPriors]:
    """A session asks twice: before anything begins, whether it can be read, and for its families."""
    return read_priors(path)


def priors_for(settings: Settings, described: Mapping[str, Any], peak_flops: float) -> Callable[[str], Priors] | None:
    """Priors by dtype for the hardware that is `described`; None if there are none or the search uses none."""
    if settings.search != "diffusion" or not settings.parts.relatives:
        return None
    known = read_chosen_priors(settings.priors).get(instruction_set(described))
    machine = machine_features(described, peak_flops)
    return None if known is None else lambda dtype: Priors(known, dtype, machine)
