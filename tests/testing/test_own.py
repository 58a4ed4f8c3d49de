"""Our searches, measurers and store pass the suites that third parties can run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.measure import MeasureConfig, cpu_measurer
from slipstream.measure.types import Measurer
from slipstream.plugins import Context, make
from slipstream.search.random import Random
from slipstream.search.types import Search
from slipstream.store import Store
from slipstream.testing.measurer import SyntheticMeasurer
from slipstream.testing.measurer_suite import MeasurerSuite
from slipstream.testing.search_suite import SearchSuite
from slipstream.testing.store_suite import StoreSuite
from tests.postgres import Server
from tests.session.synthetic import Scored


class TestDiffusion(SearchSuite):
    def make(self, context: Context) -> Search:
        search: Search = make("search", "diffusion", context)
        return search


class TestEvolutionary(SearchSuite):
    def make(self, context: Context) -> Search:
        search: Search = make("search", "evolutionary", replace(context, population=8, generations=1))
        return search


class TestChameleon(SearchSuite):
    def make(self, context: Context) -> Search:
        search: Search = make("search", "chameleon", context)
        return search


class TestRandom(SearchSuite):
    def make(self, context: Context) -> Search:
        return Random()


class TestScored(SearchSuite):
    def make(self, context: Context) -> Search:
        return Scored()


class TestLocal(MeasurerSuite):
    def make(self, context: Context) -> Measurer:
        assert context.target is not None
        return cpu_measurer(context.target, context.references, MeasureConfig(run_seconds=5.0))


class TestSynthetic(MeasurerSuite):
    runs_programs = takes_none = False

    def make(self, context: Context) -> Measurer:
        return SyntheticMeasurer(lambda program: 1e-3)


class TestStore(StoreSuite):
    def open(self, folder: Path) -> Store:
        return Store.open(folder / "store.db")


@pytest.mark.xdist_group("postgres")
class TestPostgresStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: Server) -> None:
        self.server, self.databases = postgres, dict[Path, str]()

    def open(self, folder: Path) -> Store:
        if folder not in self.databases:
            self.databases[folder] = self.server.new_database()
        return Store.open(self.server.url(self.databases[folder]))
