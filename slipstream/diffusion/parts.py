"""The parts of the tuning method that can be left out, to see what each is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from slipstream.errors import SlipstreamError


class PartsError(SlipstreamError):
    """A part that does not exist."""


def _part(about: str) -> bool:
    return field(default=True, metadata={"about": about})


@dataclass(frozen=True)
class Parts:
    """Which parts a session uses: all, unless `without` names some."""

    own_sketches: bool = _part("sketches and default programs of ours, beside MetaSchedule's; else a random one first")
    relatives: bool = _part("programs of similar operators are carried over")
    keep: bool = _part("carrying over: tiles stay, moved to the nearest divisors")
    scale: bool = _part("carrying over: tiles grow with the extent")
    random: bool = _part("some of the posterior's centres are drawn at random")
    posterior: bool = _part("half of the programs are drawn around the fastest measured so far")
    guess: bool = _part("trees over decisions say which of the drawn programs to measure")
    pretraining: bool = _part("these trees are fitted to the relatives' measurements too")
    short_firsts: bool = _part("an operator's first slot is short if programs of relatives are carried over to it")
    potential: bool = _part("an operator that is slow for its family promises more")

    @classmethod
    def leaving_out(cls, names: object) -> Parts:
        """All parts but those with these `names`."""
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise PartsError(f"without takes a list of parts, not {names!r}")
        known = [part.name for part in fields(cls)]
        if unknown := [name for name in names if name not in known]:
            raise PartsError(f"there is no part {unknown[0]!r} to leave out; choose from {', '.join(known)}")
        return cls(**dict.fromkeys(names, False))

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names of the parts that are not used."""
        return tuple(part.name for part in fields(self) if not getattr(self, part.name))


def describe_parts() -> dict[str, str]:
    """What each part does, by its name."""
    return {part.name: str(part.metadata["about"]) for part in fields(Parts)}
