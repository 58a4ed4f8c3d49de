"""Our searches, measurers and store pass the suites that third parties can run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slipstream.measure import LocalMeasurer, MeasureConfig
from slipstream.measure.types import Measurer
from slipstream.plugins import Context, make
from slipstream.search.random import Random
from slipstream.search.types import Search
from slipstream.store import Store
from slipstream.testing.measurer_suite import MeasurerSuite
from slipstream.testing.search_suite import SearchSuite
from slipstream.testing.store_suite import StoreSuite
from tests.session.synthetic import Scored, SyntheticMeasurer


class TestDiffusion(SearchSuite):
    def make(self, context: Context) -> Search:
        search: Search = make("search", "diffusion", context)
        return search


class TestEvolutionary(SearchSuite):
    def make(self, context: Context) -> Search:
        search: Search = make("search", "evolutionary", replace(context, population=8, generations=1))
        return search


class TestRandom(SearchSuite):
    def make(self, context: Context) -> Search:
        return Random()


class TestScored(SearchSuite):
    def make(self, context: Context) -> Search:
        return Scored()


class TestLocal(MeasurerSuite):
    takes_none = False

    def make(self, context: Context) -> Measurer:
        assert context.target is not None
        return LocalMeasurer(context.target, context.references, MeasureConfig(run_seconds=5.0))


class TestSynthetic(MeasurerSuite):
    runs_programs = takes_none = False

    def make(self, context: Context) -> Measurer:
        return SyntheticMeasurer(lambda program: 1e-3)


class TestStore(StoreSuite):
    def open(self, folder: Path) -> Store:
        return Store.open(folder / "store.db")
