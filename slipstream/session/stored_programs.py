"""Programs as the store has them: a sketch, kept once, and decisions."""

from __future__ import annotations

import logging

from slipstream.program.decisions import from_json
from slipstream.program.sketch import Sketch
from slipstream.program.space import Program
from slipstream.store import ProgramRecord, Store

logger = logging.getLogger(__name__)


class StoredPrograms:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._sketches: dict[str, Sketch] = {}

    def get(self, operator: str, record: ProgramRecord) -> Program | None:
        """The program a record names; None if its sketch is not in the store."""
        if record.sketch not in self._sketches:
            text = self._store.sketch(record.sketch)
            if text is None:
                logger.warning("the store lacks sketch %s; its programs are left out", record.sketch)
                return None
            self._sketches[record.sketch] = Sketch(text)
        return Program(operator, self._sketches[record.sketch], from_json(record.decisions), record.origin)

    def keep(self, sketch: Sketch) -> None:
        if sketch.digest not in self._sketches:
            self._store.add_sketch(sketch.digest, sketch.text)
            self._sketches[sketch.digest] = sketch
