"""Distilled priors as a file, and which operators of it are near."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.diffusion.distilled import (
    SHIPPED,
    ClassPriors,
    Priors,
    PriorsError,
    TunedOperator,
    TunedProgram,
    read_priors,
    write_priors,
)
from slipstream.diffusion.signature import signature
from slipstream.machine.hardware import instruction_set
from slipstream.program.sketch import Sketch

TILES = Sketch(json.dumps([["SamplePerfectTile", ["l0"], [2, 64], ["v0", "v1"]]] * 2, separators=(",", ":")))
CHOICE = Sketch(json.dumps([["SampleCategorical", [], [[0, 16, 64], [0.3, 0.3, 0.4]], ["v0"]]], separators=(",", ":")))


def tuned(key: str, rows: int, columns: int, machine: str = "two cores", *seconds: float) -> TunedOperator:
    """An operator with tiles of these extents; the n-th program has 2^n rows inside."""
    programs = [
        TunedProgram(signature(TILES), ((rows >> n, 2**n), (columns, 1)), own)
        for n, own in enumerate(seconds or (1e-3, 2e-3))
    ]
    return TunedOperator(key, f"matmul {key}", "float32", machine, tuple(sorted(programs, key=lambda p: p.seconds)))


def known(*operators: TunedOperator) -> ClassPriors:
    machines = {"two cores": {"threads": 2.0}, "many cores": {"threads": 64.0}}
    return ClassPriors(machines, {signature(TILES): TILES, signature(CHOICE): CHOICE}, operators)


def test_a_file_has_what_was_written_and_equal_priors_make_equal_files(tmp_path: Path) -> None:
    failed = tuned("b", 64, 8, "two cores", 1e-3, math.inf)
    priors = {"neon": known(tuned("a", 16, 32), failed), "sm_90": known(tuned("c", 4, 4))}
    size = write_priors(priors, tmp_path / "a")
    assert size == (tmp_path / "a").stat().st_size
    back = read_priors(tmp_path / "a")
    assert {name: one.operators for name, one in back.items()} == {n: tuple(o.operators) for n, o in priors.items()}
    assert back["neon"].sketches == {signature(TILES): TILES}  # the other one is not used
    write_priors(dict(reversed(back.items())), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ({"version": 99}, "priors of version 99, not 1"),
        ({"format": "recipes"}, "its format is 'recipes'"),
        ({"classes": {"neon": {"machines": {}, "sketches": []}}}, "damaged"),
        ({"classes": []}, "damaged"),
        (None, "cannot read priors"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_a_remedy(spoil: Any, says: str, tmp_path: Path) -> None:
    file = tmp_path / "priors"
    write_priors({"neon": known(tuned("a", 16, 32))}, file)
    content = json.loads(gzip.decompress(file.read_bytes()))
    file.write_bytes(b"not packed" if spoil is None else gzip.compress(json.dumps(content | spoil).encode()))
    with pytest.raises(PriorsError, match=says) as raised:
        read_priors(file)
    assert "slipstream store distil" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_illegal_decisions_are_damage(tmp_path: Path) -> None:
    file = tmp_path / "priors"
    write_priors({"neon": known(tuned("a", 16, 32))}, file)
    content = json.loads(gzip.decompress(file.read_bytes()))
    content["classes"]["neon"]["operators"][0]["programs"][0][1] = [[16, 1]]
    file.write_bytes(gzip.compress(json.dumps(content).encode()))
    with pytest.raises(PriorsError, match="damaged"):
        read_priors(file)


def test_a_file_that_would_be_too_large_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.diffusion.distilled.MOST_BYTES", 100)
    with pytest.raises(PriorsError, match="--keep"):
        write_priors({"neon": known(tuned("a", 16, 32))}, tmp_path / "priors")
    assert not (tmp_path / "priors").exists()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(PriorsError, match=r"cannot write .*priors\.gz: No such file or directory"):
        write_priors({"neon": known(tuned("a", 16, 32))}, tmp_path / "no" / "priors.gz")


def test_the_nearest_has_the_most_similar_extents_and_machine() -> None:
    operators = [
        tuned("far", 1024, 1024),
        tuned("near", 32, 16),
        tuned("same, elsewhere", 16, 16, "many cores"),
        tuned("same", 16, 16),
        replace(tuned("other type", 16, 16), dtype="float16"),
        tuned("failed", 16, 16, "two cores", math.inf),
    ]
    priors = Priors(known(*operators), "float32", {"threads": 2.0})
    found = priors.nearest(TILES, (16.0, 16.0))
    assert [one.operator.key for one in found] == ["same", "near", "same, elsewhere", "far"]
    assert found[0].similarity == 1.0
    assert found[1].similarity == pytest.approx(2**-0.5)
    assert priors.covers(TILES)
    assert not priors.covers(CHOICE)
    assert not priors.nearest(CHOICE, ())
    assert not Priors(known(*operators), "int8").covers(TILES)


def test_a_neighbour_says_how_much_slower_its_programs_of_the_signature_are() -> None:
    programs = (TunedProgram(signature(CHOICE), (1,), 1e-3), TunedProgram(signature(TILES), ((8, 2), (4, 4)), 3e-3))
    (neighbour,) = Priors(known(replace(tuned("a", 16, 16), programs=programs)), "float32").nearest(TILES, (16.0, 16.0))
    assert neighbour.slower == pytest.approx(3.0)
    assert neighbour.programs == programs[1:]


def test_merging_keeps_the_shorter_time_of_a_program_and_machines_apart() -> None:
    first = known(tuned("a", 16, 16, "two cores", 1e-3, 5e-3), tuned("b", 4, 4))
    second = known(tuned("a", 16, 16, "two cores", 2e-3, 4e-3, 3e-3), tuned("a", 16, 16, "many cores", 1e-4))
    merged = {(one.key, one.machine): one for one in first.merged(second).operators}
    assert [program.seconds for program in merged["a", "two cores"].programs] == [1e-3, 3e-3, 4e-3]
    assert [program.seconds for program in merged["a", "many cores"].programs] == [1e-4]
    assert ("b", "two cores") in merged


def test_thinning_keeps_the_fastest_and_the_slowest() -> None:
    all_of_them = known(tuned("a", 2**20, 16, "two cores", *(float(n) for n in range(1, 20))))
    (thin,) = all_of_them.thinned(6).operators
    kept = [program.seconds for program in thin.programs]
    assert len(kept) == 6
    assert kept[:3] == [1.0, 2.0, 3.0]
    assert kept[-1] == 19.0
    assert kept == sorted(kept)
    assert all_of_them.thinned(19) == all_of_them


@pytest.mark.parametrize(
    ("described", "name"),
    [
        ({"kind": "cpu", "architecture": "x86_64", "features": ["avx2", "avx512f"]}, "avx512"),
        ({"kind": "cpu", "architecture": "x86_64", "features": ["avx2", "fma"]}, "avx2"),
        ({"kind": "cpu", "architecture": "x86_64", "features": []}, "x86_64"),
        ({"kind": "cpu", "architecture": "aarch64", "features": ["dotprod"]}, "neon"),
        ({"kind": "cuda", "architecture": "sm_90", "threads": 1024}, "sm_90"),
    ],
)
def test_classes_of_hardware(described: dict[str, Any], name: str) -> None:
    assert instruction_set(described) == name


def test_the_shipped_file_is_whole_and_small() -> None:
    assert SHIPPED.stat().st_size <= 2_000_000
    for one in read_priors(SHIPPED).values():
        for operator in one.operators:
            assert operator.machine in one.machines
            assert operator.programs == tuple(sorted(operator.programs, key=lambda program: program.seconds))
