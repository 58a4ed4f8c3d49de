"""Searches: they propose which programs of an operator to measure. Made by name; the protocol is in `types.py`."""

from __future__ import annotations

from collections.abc import Collection

from slipstream.errors import SlipstreamError
from slipstream.search.types import Search

NAMES = ("diffusion", "evolutionary", "random")


class SearchError(SlipstreamError):
    """A search was asked for by a name that does not exist."""


def make(
    name: str, *, threads: int, population: int = 512, generations: int = 4, without: Collection[str] = ()
) -> Search:
    """The search called `name` (see `NAMES`); `population` and `generations` are those of evolutionary search,
    `without` the parts that diffusion does without.
    """
    if name == "diffusion":
        from slipstream.search.diffusion import Diffusion, DiffusionOptions

        return Diffusion(DiffusionOptions.without(without))
    if name == "random":
        from slipstream.search.random import Random

        return Random()
    if name == "evolutionary":
        from slipstream.search.evolutionary import Evolution, Evolutionary

        return Evolutionary(threads, Evolution(population_size=population, genetic_num_iters=generations))
    raise SearchError(f"there is no search {name!r}; choose one of {', '.join(NAMES)}")
