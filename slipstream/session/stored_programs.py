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
        self._sketches: dict[str, Sketch | None] = {}

    def get(self, operator: str, record: ProgramRecord) -> Program | None:
        """The program a record names; None if its sketch is not in the store."""
        if record.sketch not in self._sketches:
            text = self._store.sketch(record.sketch)
            if text is None:
                logger.warning("the store lacks sketch %s; its programs are left out", record.sketch)
            self._sketches[record.sketch] = None if text is None else Sketch(text)
        sketch = self._sketches[record.sketch]
        return Program(operator, sketch, from_json(record.decisions), record.origin) if sketch else None

    def keep(self, sketch: Sketch) -> None:
        if self._sketches.get(sketch.digest) is None:
            self._store.add_sketch(sketch.digest, sketch.text)
            self._sketches[sketch.digest] = sketch
