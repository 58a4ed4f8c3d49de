"""Proposers of programs, by name. The contract is in `types.py`."""

from __future__ import annotations

from slipstream.diffusion.parts import Parts
from slipstream.errors import SlipstreamError
from slipstream.search.types import Search

NAMES = ("diffusion", "evolutionary", "random")


class SearchError(SlipstreamError):
    """A search was asked for by a name that does not exist."""


def make(
    name: str,
    *,
    threads: int,
    population: int = 512,
    generations: int = 4,
    parts: Parts = Parts(),  # noqa: B008  # frozen
) -> Search:
    """The search called `name` (see `NAMES`); `population` and `generations` are those of evolutionary search,
    `parts` those that diffusion uses.
    """
    if name == "diffusion":
        from slipstream.search.diffusion import Diffusion

        return Diffusion(parts)
    if name == "random":
        from slipstream.search.random import Random

        return Random()
    if name == "evolutionary":
        from slipstream.search.evolutionary import Evolution, Evolutionary

        return Evolutionary(threads, Evolution(population_size=population, genetic_num_iters=generations))
    raise SearchError(f"there is no search {name!r}; choose one of {', '.join(NAMES)}")
