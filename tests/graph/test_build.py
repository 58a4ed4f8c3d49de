"""A model's operators are built side by side: the number of processes changes nothing, and none is left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import tirx

import slipstream
from slipstream.errors import BuildError
from slipstream.graph import build
from slipstream.graph.build import keeping_objects
from slipstream.graph.operators import extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import resolve_target
from slipstream.processes.forked import ForkedCrashError, copies_at_work, side_by_side
from slipstream.program.scheduled import schedule_with
from slipstream.program.space import Space


def test_the_library_is_the_same_however_many_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = []
    for processes in (1, 3, 64):
        monkeypatch.setattr(build, "build_processes", lambda processes=processes: processes)
        result = slipstream.compile("zoo:tiny_cnn", tmp_path / str(processes))
        libraries.append((result.directory / result.manifest.library).read_bytes())
        assert not copies_at_work()
    assert len(set(libraries)) == 1


def _killed(*_: Any) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def _failing(*_: Any) -> bytes:
    raise BuildError("TVM could not build the model: no such instruction")


@pytest.mark.parametrize(("part", "said"), [(_killed, "killed by SIGKILL"), (_failing, "no such instruction")])
def test_what_ends_one_ends_all_in_one_line(
    part: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "build_processes", lambda: 2)
    monkeypatch.setattr(build, "_object_of", part)
    with pytest.raises(BuildError, match=said):
        slipstream.compile("zoo:tiny_cnn", tmp_path / "out")
    assert not copies_at_work()
    assert not (tmp_path / "out").exists()


def test_what_two_models_share_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def library(name: str) -> bytes:
        result = slipstream.compile("zoo:tiny_cnn", tmp_path / name)
        return (result.directory / result.manifest.library).read_bytes()

    with keeping_objects():
        first = library("first")
        with monkeypatch.context() as nothing_is_built:
            nothing_is_built.setattr(build, "_object_of", _failing)
            assert library("second") == first
    monkeypatch.setattr(build, "_object_of", _failing)
    with pytest.raises(BuildError):
        library("third")


def test_default_programs_are_the_same_code_with_and_without_a_session() -> None:
    target = resolve_target()
    mod = prepare(slipstream.load_model("zoo:resnet18").module, target)[0]
    spaces = [Space(one.key, one.func, target) for one in extract_operators(mod)]
    assert any(space.default.sketch.form for space in spaces), "Winograd's method among them"
    with_session = build.apply_programs(mod, target, schedule_with({s.key: s.default for s in spaces}, target))
    assert codes(with_session) == codes(build.apply_programs(mod, target))


def codes(mod: Any) -> dict[str, str]:
    functions = {v.name_hint: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    return {name: str(tvm.ir.save_json(func)) for name, func in functions.items()}


def test_results_come_in_order_and_the_first_error_cancels_the_rest() -> None:
    assert side_by_side([lambda n=n: time.sleep(0.2 - n / 20) or n for n in range(4)]) == [0, 1, 2, 3]  # type: ignore[misc]
    started = time.monotonic()
    with pytest.raises(ForkedCrashError):
        side_by_side([_killed, lambda: time.sleep(60)])  # type: ignore[list-item,return-value]
    assert time.monotonic() - started < 30
    assert not copies_at_work()
