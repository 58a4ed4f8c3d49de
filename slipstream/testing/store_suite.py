"""What a store must do, as tests for whoever changes ours or writes another.

    class TestMine(StoreSuite):
        def open(self, folder):
            return MyStore(folder / "store")

pytest collects the subclass and runs all of it; nothing here needs pytest or TVM. Each test has a folder of its own.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.store import OperatorRecord, ProgramRecord, SlotRecord, Store, StoreError, TrialRecord

OPERATORS = ("aa00", "bb11")
HARDWARE = {"kind": "cpu", "cpu": "neoverse-n1", "threads": 2}
MODEL = "f00d"


def program(number: int = 0, origin: str = "evolutionary") -> ProgramRecord:
    return ProgramRecord("5ce7c4", f"[[{number},4,1,2]]", origin)


def trial(hardware: str, seconds: float | None = 1.0, number: int = 0, **changes: Any) -> TrialRecord:
    """A trial of program `number` of the first operator; without `seconds` it failed."""
    record = TrialRecord(OPERATORS[0], hardware, program(number))
    end: dict[str, Any] = {"samples": (seconds,)} if seconds is not None else {"failure": "crash", "message": "SIGSEGV"}
    return replace(record, **(end | changes))


class StoreSuite:
    """Subclass it and say how the store in a folder is opened; it is made where there is none."""

    def open(self, folder: Path) -> Store:
        raise NotImplementedError

    def test_what_is_described_comes_back(self) -> None:
        with self._folder() as folder:
            store, hardware = self._filled(folder)
            assert store.add_hardware(dict(reversed(HARDWARE.items()))) == hardware, "the order of keys means nothing"
            store.close()
            with self.open(folder) as again:
                assert [record.key for record in again.operators()] == list(OPERATORS)
                assert again.operator(OPERATORS[1]) == _operator(OPERATORS[1])
                assert (again.sketch("5ce7c4"), again.sketch("none")) == ("sketch text", None)
                assert again.hardware(hardware) == HARDWARE
                assert again.operator("zz") is None

    def test_trials_come_back_as_they_were_in_the_order_they_came(self) -> None:
        with self._folder() as folder:
            store, hardware = self._filled(folder)
            full = trial(hardware, samples=(1e-9, 0.1, 3.0), noisy=True, verified=True, build_seconds=0.25)
            records = [full, trial(hardware, None, operator=OPERATORS[1], message="é\n"), trial(hardware, 2.0, 3)]
            ids = [store.append_trial(records[0])]
            store.append_trials(records[1:])
            store.close()
            with self.open(folder) as again:
                back = list(again.trials())
                assert [replace(record, id=None) for record in back] == records
                assert [record.id for record in back] == sorted(record.id or 0 for record in back)
                assert back[0].id == ids[0]

    def test_the_best_is_the_fastest_program_that_worked(self) -> None:
        with self._filled_store() as (store, hardware):
            assert store.best(OPERATORS[0], hardware) is None
            for seconds, number in ((3.0, 1), (None, 2), (1.0, 3), (2.0, 1), (1.5, 3)):
                store.append_trial(trial(hardware, seconds, number))
            store.append_trial(trial(hardware, number=9, samples=()))
            best = store.best(OPERATORS[0], hardware)
            assert best is not None
            assert (best.median, best.program) == (1.0, program(3))
            fastest = [(t.median, t.program) for t in store.top(OPERATORS[0], hardware, 9)]
            assert fastest == [(1.0, program(3)), (2.0, program(1))], "each program once, the fastest first"
            assert [len(store.top(OPERATORS[0], hardware, count)) for count in (0, 1)] == [0, 1]
            assert store.best(OPERATORS[1], hardware) is None

    def test_examples_are_the_fastest_and_others_down_to_the_failed(self) -> None:
        with self._filled_store() as (store, hardware):
            for number in range(1, 10):
                store.append_trial(trial(hardware, float(number), number))
            store.append_trial(trial(hardware, None, 10))
            store.append_trial(trial(hardware, None, 1))
            for count, found in ((4, [1, 2, 6, 10]), (2, [1, 10]), (1, [1]), (0, [])):
                examples = store.examples(OPERATORS[0], hardware, count)
                assert [one.program for one in examples] == [program(number) for number in found]
            every = store.examples(OPERATORS[0], hardware, 99)
            assert [one.program for one in every] == [program(number) for number in range(1, 11)], "each once"
            assert not store.examples(OPERATORS[1], hardware, 9)

    def test_what_was_measured_on_other_hardware_does_not_count(self) -> None:
        with self._filled_store() as (store, hardware):
            other = store.add_hardware({"kind": "cpu", "cpu": "skylake", "threads": 8})
            assert other != hardware
            store.append_trial(trial(other, 0.1))
            assert store.best(OPERATORS[0], hardware) is None
            assert list(store.trials(hardware=hardware)) == []
            assert (store.counts(hardware), store.counts(other)) == ({}, {OPERATORS[0]: (1, 0)})

    def test_trials_by_what_they_belong_to(self) -> None:
        with self._filled_store() as (store, hardware):
            other = store.add_hardware({"kind": "another"})
            session = store.create_session(MODEL, hardware, {}, {OPERATORS[0]: 1})
            first = store.append_trial(trial(hardware, session=session, slot=0, position=1))
            second = store.append_trial(trial(hardware, None, operator=OPERATORS[1]))
            third = store.append_trial(trial(other, operator=OPERATORS[1]))
            assert [t.id for t in store.trials()] == [first, second, third]
            assert [t.id for t in store.trials(operator=OPERATORS[1])] == [second, third]
            assert [t.id for t in store.trials(operator=OPERATORS[1], hardware=hardware)] == [second]
            assert [(t.session, t.slot, t.position) for t in store.trials(session=session)] == [(session, 0, 1)]
            assert store.counts(hardware) == {OPERATORS[0]: (1, 0), OPERATORS[1]: (1, 1)}

    def test_trials_may_be_appended_while_they_are_read(self) -> None:
        with self._filled_store() as (store, hardware):
            store.append_trials(trial(hardware, number=n) for n in range(1200))
            seen = 0
            for record in store.trials():
                seen += 1
                if seen % 100 == 0:
                    store.append_trial(record)
            assert (seen, sum(1 for _ in store.trials())) == (1200, 1212)

    def test_of_a_batch_all_or_nothing_is_stored(self) -> None:
        with self._filled_store() as (store, hardware):
            _refused(lambda: store.append_trials([trial(hardware), trial(hardware, operator="zz")]), "operator zz")
            _refused(lambda: store.append_trial(trial("feed")), "hardware feed")
            _refused(lambda: store.append_trial(trial(hardware, session="s1")), "session s1")
            assert list(store.trials()) == []

    def test_a_session_from_its_beginning_to_its_end(self) -> None:
        with self._folder() as folder:
            store, hardware = self._filled(folder)
            weights = {OPERATORS[1]: 3, OPERATORS[0]: 1}
            session = store.create_session(MODEL, hardware, {"budget": "5m"}, weights)
            assert list(store.session_operators(session).items()) == list(weights.items())
            programs = (program(1), program(2, "diffusion"), program(1, "default"))
            store.begin_slot(session, 0, OPERATORS[0], programs, 1.5, {"gain": 0.25})
            store.begin_slot(session, 1, OPERATORS[1], (), 0.5, {})
            store.finish_slot(session, 0, {"best": math.inf})
            store.put_state(session, "cost", 0, b"old")
            store.put_state(session, "cost", 1, b"new")
            store.update_session(session, status="interrupted", elapsed=12.5)
            store.update_session(session, result={"latency": 1.0})
            store.close()
            with self.open(folder) as again:
                assert again.slots(session) == [
                    SlotRecord(0, OPERATORS[0], programs, 1.5, {"gain": 0.25}, True, {"best": math.inf}),
                    SlotRecord(1, OPERATORS[1], (), 0.5, {}, False, {}),
                ]
                (record,) = again.sessions()
                assert record == again.session(session)
                assert (record.model, record.model_name, record.hardware) == (MODEL, "tiny", hardware)
                assert (record.status, record.elapsed, record.result) == ("interrupted", 12.5, {"latency": 1.0})
                assert record.options == {"budget": "5m"}
                assert (again.state(session, "cost"), again.state(session, "belief")) == ((1, b"new"), None)

    def test_mistakes_with_a_session_are_refused(self) -> None:
        with self._filled_store() as (store, hardware):
            session = store.create_session(MODEL, hardware, {}, {})
            store.begin_slot(session, 0, OPERATORS[0], [program()], 0.0, {})
            _refused(lambda: store.create_session("1234", hardware, {}, {}), "model 1234")
            _refused(lambda: store.create_session(MODEL, hardware, {}, {"zz": 1}), "operator zz")
            _refused(lambda: store.session("gone"), "session gone")
            _refused(lambda: store.begin_slot(session, 0, OPERATORS[0], [], 0.0, {}), "slot 0")
            _refused(lambda: store.finish_slot(session, 7, {}), "slot 7")
            _refused(lambda: store.update_session(session, status="asleep"), "asleep")
            assert len(store.sessions()) == len(store.slots(session)) == 1

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)

    @contextmanager
    def _filled_store(self) -> Iterator[tuple[Store, str]]:
        with self._folder() as folder:
            store, hardware = self._filled(folder)
            with store:
                yield store, hardware

    def _filled(self, folder: Path) -> tuple[Store, str]:
        """A store with a model, two operators and one piece of hardware, whose digest comes with it."""
        store = self.open(folder)
        store.add_model(MODEL, "tiny", "tiny.onnx")
        store.add_operators(_operator(key) for key in OPERATORS)
        store.add_sketch("5ce7c4", "sketch text")
        return store, store.add_hardware(HARDWARE)


def _operator(key: str) -> OperatorRecord:
    shapes = (((16, 16), "float32"), ((), "int64"))
    return OperatorRecord(key, f"matmul {key}", ("matmul", "add"), 2**40, 12, shapes, '{"module": "text é"}' * 50)


def _refused(mistake: Callable[[], object], named: str) -> None:
    """A StoreError of one line that names what was wrong."""
    said = ""
    try:
        mistake()
    except StoreError as error:
        said = str(error)
    assert named in said
    assert "\n" not in said
