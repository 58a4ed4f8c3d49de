"""Searches: they propose which programs of an operator to measure. The protocol is in `types.py`, the names are in
`plugins.py`, which calls the functions here."""

from __future__ import annotations

from collections.abc import Collection

from slipstream.search.types import Search


def make_diffusion(without: Collection[str]) -> Search:
    """Code diffusion without the parts named."""
    from slipstream.search.diffusion import Diffusion, DiffusionOptions

    return Diffusion(DiffusionOptions.without(without))


def make_evolutionary(threads: int, population: int, generations: int) -> Search:
    """TVM's evolutionary search."""
    from slipstream.search.evolutionary import Evolution, Evolutionary

    return Evolutionary(threads, Evolution(population_size=population, genetic_num_iters=generations))
