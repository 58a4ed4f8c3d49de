"""Searches: they propose which programs of an operator to measure. The protocol is in `types.py`, the names are in
`plugins.py`, which calls the functions here."""

from __future__ import annotations

from slipstream.diffusion.parts import Parts
from slipstream.search.types import Search


def make_diffusion(parts: Parts) -> Search:
    """Code diffusion with those parts."""
    import xgboost  # noqa: F401  # half a second, now that the measuring server starts, instead of in the first slots

    from slipstream.search.diffusion import Diffusion

    return Diffusion(parts)


def make_evolutionary(threads: int, population: int, generations: int) -> Search:
    """TVM's evolutionary search."""
    from slipstream.search.evolutionary import Evolution, Evolutionary

    return Evolutionary(threads, Evolution(population_size=population, genetic_num_iters=generations))
