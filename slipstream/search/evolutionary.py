"""TVM's evolutionary search, unmodified, with its parameters exposed.

Each round starts from a population of which a part are the best programs measured so far and the rest random, and
evolves it for some generations by the cost model's scores; the best of all generations are proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.program import trace
from slipstream.program.sketch import SketchError
from slipstream.program.space import Program, Realized, Space
from slipstream.search.types import Measured, Question, Score

_UNLIMITED = 1_000_000


@dataclass(frozen=True)
class Evolution:
    """The parameters of TVM's search under their own names, at TVM's own values."""

    population_size: int = 512
    init_measured_ratio: float = 0.2
    init_min_unmeasured: int = 50
    max_fail_count: int = 5
    genetic_num_iters: int = 4
    genetic_mutate_prob: float = 0.85
    genetic_max_fail_count: int = 10
    eps_greedy: float = 0.05


class Evolutionary:
    """Searches MetaSchedule's sketches. With more than one thread TVM shares the work out as threads come free, so
    that only `threads=1` proposes the same programs every time."""

    uses_score = True

    def __init__(self, threads: int, evolution: Evolution | None = None) -> None:
        self._threads = threads
        self._evolution = evolution or Evolution()

    def propose(self, question: Question) -> list[Realized]:
        from tvm.s_tir import meta_schedule as ms

        space = question.space
        if question.count < 1 or not any(point.is_open for example in space.stock for point in space.points(example)):
            return []
        known = {measured.program.identity for measured in question.measured}
        # TVM avoids duplicates within one run only: ask for more, and leave out measured programs.
        wanted = question.count + min(len(known), question.count)
        with space.target.tvm:
            context = space.context(
                question.seed,
                search_strategy=ms.search_strategy.EvolutionarySearch(**vars(self._evolution)),
                num_threads=self._threads,
            )
            context.pre_tuning(
                max_trials=_UNLIMITED,
                num_trials_per_iter=wanted,
                database=_database(space, question.measured),
                cost_model=_cost_model(question.score),
            )
            candidates = context.generate_measure_candidates() or []
            context.post_tuning()
        found: list[Realized] = []
        for candidate in candidates:
            try:
                sketch, decisions = trace.read_trace(candidate.sch.trace, space.names)
            except SketchError:
                continue
            program = Program(space.key, sketch, decisions, "evolutionary")
            if program.identity not in known and len(found) < question.count:
                known.add(program.identity)
                found.append(Realized(program, candidate.sch.mod))
        return found


def _database(space: Space, measured: Sequence[Measured]) -> Any:
    """What has been measured, in the form TVM's search reads it."""
    from tvm import s_tir
    from tvm.s_tir import meta_schedule as ms

    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(space.mod)
    digests = {example.sketch.digest for example in space.stock}
    for known in measured:
        if not np.isfinite(known.seconds) or known.program.sketch.digest not in digests:
            continue
        schedule = s_tir.Schedule(space.mod, seed=1, debug_mask=0, error_render_level="none")
        trace.apply(known.program.sketch, known.program.decisions, schedule, space.names)
        database.commit_tuning_record(
            ms.database.TuningRecord(schedule.trace, workload, [known.seconds], space.target.tvm)
        )
    return database


def _cost_model(score: Score) -> Any:
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.cost_model import PyCostModel
    from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

    extractor = PerStoreFeature()

    @derived_object
    class Scored(PyCostModel):  # type: ignore[misc]
        def predict(self, context: Any, candidates: list[Any]) -> np.ndarray[Any, Any]:
            rows = extractor.extract_from(context, candidates)
            return score([features.numpy().astype(np.float32) for features in rows])

        def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
            """Does nothing: the session trains the model."""

    return Scored()
