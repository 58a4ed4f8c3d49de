"""From stored sessions to priors and from there to a new session's first programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

import slipstream
from slipstream.cli import main
from slipstream.diffusion.distilled import PriorsError, read_priors
from slipstream.machine.hardware import instruction_set
from slipstream.plugins import Context
from slipstream.program.decisions import from_json
from slipstream.session.directory import SessionDirectory
from slipstream.session.distil import distil, machine_features
from slipstream.session.events import Event, Snapshot
from slipstream.session.records import is_default
from slipstream.store import SlotRecord, Store, TrialRecord
from slipstream.testing.measurer import SyntheticMeasurer
from tests.conftest import small_model
from tests.store.samples import operator, program


def synthetic(context: Context) -> SyntheticMeasurer:
    return SyntheticMeasurer()


def tune(model: Path, directory: Path, **options: Any) -> tuple[list[Event], Store]:
    """Tune without measuring; the events, and the session's store."""
    events: list[Event] = []

    def watch(event: Event, snapshot: Snapshot) -> None:
        events.append(event)

    slipstream.tune(model, directory, measurer=synthetic, callbacks=[watch], **options)
    return events, Store.open(SessionDirectory.read(directory).store, read_only=True)


def searched(store: Store) -> list[SlotRecord]:
    """The slots of the store's session, but for those of default programs."""
    (record,) = store.sessions()
    return [slot for slot in store.slots(record.id) if not is_default(slot)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(small_model(batch=1), path)
    return path


@pytest.fixture(scope="module")
def session(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of the model that started from nothing."""
    directory = tmp_path_factory.mktemp("first") / "session"
    _, store = tune(model, directory, trials=20, priors=None)
    store.close()
    return directory


@pytest.fixture(scope="module")
def priors(session: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `slipstream store distil` makes of it."""
    file = tmp_path_factory.mktemp("priors") / "priors"
    done = CliRunner().invoke(main, ["store", "distil", str(session), "-o", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "programs of 1 operators" in done.output
    return file


def test_the_first_slot_measures_what_priors_suggest(model: Path, priors: Path, tmp_path: Path) -> None:
    _, store = tune(model, tmp_path / "with", trials=14, priors=priors, seed=5)
    (known,) = read_priors(priors).values()
    (operator,) = known.operators
    fastest = [program.decisions for program in operator.programs[:12]]
    with store:
        (record,) = store.sessions()
        assert record.options["settings"]["priors"] == str(priors)
        first, second, *_ = searched(store)
        assert len(first.programs) == 2  # a quarter of a slot
        assert len(second.programs) == 8
        suggested = [from_json(p.decisions) for p in first.programs if p.origin == "diffusion:distilled"]
        assert set(suggested) & set(fastest)


def test_a_search_that_carries_nothing_over_has_full_slots(model: Path, priors: Path, tmp_path: Path) -> None:
    _, store = tune(model, tmp_path / "random", trials=14, priors=priors, seed=5, search="random")
    with store:
        first, *_ = searched(store)
        assert len(first.programs) == 8


def test_without_priors_nothing_is_suggested(model: Path, tmp_path: Path) -> None:
    _, store = tune(model, tmp_path / "without", trials=12, priors=None, seed=5)
    with store:
        (record,) = store.sessions()
        assert record.options["settings"]["priors"] is None
        first, *others = searched(store)
        assert len(first.programs) == 8
        assert not any(p.origin == "diffusion:distilled" for slot in (first, *others) for p in slot.programs)


def test_priors_for_other_sketches_are_mentioned_once_and_not_used(model: Path, priors: Path, tmp_path: Path) -> None:
    from slipstream.diffusion.distilled import ClassPriors, TunedOperator, TunedProgram, write_priors
    from slipstream.diffusion.signature import signature
    from slipstream.program.sketch import Sketch

    (name,) = read_priors(priors)
    strange = Sketch('[["SamplePerfectTile",["l0"],[7,3],["v0","v1","v2","v3","v4","v5","v6"]]]')
    of_another_time = TunedProgram(signature(strange), ((2, 1, 1, 1, 1, 1, 1),), 1e-3)
    one = TunedOperator("a", "conv2d 1x1 8→8 4x4", "float32", "m", (of_another_time,))
    file = tmp_path / "strange"
    write_priors({name: ClassPriors({"m": {}}, {signature(strange): strange}, (one,))}, file)
    events, store = tune(model, tmp_path / "session", trials=12, priors=file)
    with store:
        texts = [event.data["text"] for event in events if event.kind == "message"]
        assert len([text for text in texts if "priors fit no operator" in text]) == 1
        assert not any(p.origin == "diffusion:distilled" for slot in searched(store) for p in slot.programs)


def test_a_file_that_is_no_priors_is_refused_before_anything_begins(model: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("buy milk")
    with pytest.raises(PriorsError, match="cannot read priors"):
        slipstream.tune(model, tmp_path / "session", trials=3, priors=tmp_path / "notes")
    assert not (tmp_path / "session").exists()


def test_priors_and_none_at_once_are_a_mistake(tmp_path: Path) -> None:
    asked = ["tune", "zoo:tiny_cnn", "-o", str(tmp_path / "out"), "--priors", "file", "--no-priors"]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 2
    assert "choose one" in done.output
    assert not (tmp_path / "out").exists()


def test_distilling_adds_to_what_is_there(priors: Path, session: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    both.write_bytes(priors.read_bytes())
    with Store.open(SessionDirectory.read(session).store, read_only=True) as store:
        (hardware,) = {record.hardware for record in store.sessions()}
        described = store.hardware(hardware)
        (key,) = {one.key for known in read_priors(priors).values() for one in known.operators}
        text = store.operator(key)
        trials = list(store.trials(operator=key))
        sketches = {t.program.sketch: store.sketch(t.program.sketch) for t in trials}
    assert text is not None
    # The same trials, on a machine with more threads.
    with Store.open(tmp_path / "other.db") as other:
        elsewhere = other.add_hardware({**described, "threads": 64})
        other.add_model("f00d", "other", "other.onnx")
        other.add_operators([text])
        for name, sketch in sketches.items():
            assert sketch is not None
            other.add_sketch(name, sketch)
        other.create_session("f00d", elsewhere, {}, {key: 1})
        other.append_trials(
            TrialRecord(key, elsewhere, t.program, t.samples, t.failure, measured_at=t.measured_at) for t in trials
        )
    done = CliRunner().invoke(main, ["store", "distil", str(tmp_path / "other.db"), "-o", str(both), "--keep", "4"])
    assert done.exit_code == 0, done.output
    (known,) = read_priors(both).values()
    assert len(known.machines) == len(known.operators) == 2
    assert all(len(one.programs) <= 4 for one in known.operators)


def test_what_is_distilled(tmp_path: Path) -> None:
    tile = '[["SamplePerfectTile",["l0"],[4,64],["v0","v1","v2","v3"]]]'
    described = {"kind": "cpu", "architecture": "aarch64", "machine": "N1", "features": [], "threads": 2}
    with Store.open(tmp_path / "store.db") as store:
        hardware = store.add_hardware(described)
        store.add_model("f00d", "tiny", "tiny.onnx")
        store.add_operators([operator("aa00"), operator("bb11"), operator("cc22")])
        store.add_sketch("5ce7c4", tile)
        session = store.create_session("f00d", hardware, {}, {"aa00": 1})
        store.put_state(session, "peak_flops", 0, b"5e10")
        measured = {1: 3.0, 2: 1.0, 3: 2.0}
        for number, seconds in measured.items():
            store.append_trial(TrialRecord("aa00", hardware, program(number), (seconds,)))
        store.append_trial(TrialRecord("aa00", hardware, program(4), (0.1,), noisy=True))
        store.append_trial(TrialRecord("aa00", hardware, program(5), failure="crash"))
        store.append_trial(TrialRecord("aa00", hardware, program(6), failure="device lost"))
        store.append_trial(TrialRecord("bb11", hardware, program(1), (1.0,)))  # its default program alone
    with Store.open(tmp_path / "store.db", read_only=True) as store:
        (known,) = distil(store).values()
        (disturbed,) = distil(store, noisy=True).values()
    (one,) = known.operators
    assert (one.key, one.dtype, one.machine) == ("aa00", "float32", "N1, 2 threads")
    assert [p.decisions[0][0] for p in one.programs] == [2, 3, 1, 5]  # type: ignore[index]
    assert disturbed.operators[0].programs[0].seconds == 0.1
    assert known.machines == {"N1, 2 threads": {"threads": 2.0, "peak_flops": 5e10}}
    assert machine_features(described, 0.0) == {"threads": 2.0}
    assert instruction_set(described) == "neon"


def test_nothing_to_distil_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        store.add_hardware({"kind": "cpu"})
    done = CliRunner().invoke(main, ["store", "distil", str(tmp_path / "store.db"), "-o", str(tmp_path / "p")])
    assert done.exit_code != 0
    assert "nothing to distil" in done.output + str(done.stderr)
    assert not (tmp_path / "p").exists()
