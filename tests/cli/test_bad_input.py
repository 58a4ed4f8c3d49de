"""Every mistake a person can make: one line that names it, exit code 2, no traceback, no artifact."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

import slipstream
from slipstream.errors import ModelError
from tests.cli.forked_commands import ForkedCommands
from tests.conftest import small_model

SLIPSTREAM = [sys.executable, "-c", "from slipstream.cli import main; main(prog_name='slipstream')"]


def slipstream_command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SLIPSTREAM, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@dataclass(frozen=True)
class Mistake:
    """`prepare` lays out files in an empty directory, `command` is then run there."""

    command: str
    says: str
    prepare: Callable[[Path], object] = lambda directory: None
    needs_artifact: bool = False


def _small(name: str = "m.onnx", **options: object) -> Callable[[Path], object]:
    return lambda directory: onnx.save(small_model(**options), directory / name)  # type: ignore[arg-type]


def _truncated(directory: Path) -> None:
    content = small_model().SerializeToString()
    (directory / "m.onnx").write_bytes(content[: len(content) * 2 // 3])


def _external(directory: Path, keep: int | None) -> None:
    onnx.save(small_model(), directory / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    if keep is None:
        (directory / "w.bin").unlink()
    else:
        (directory / "w.bin").write_bytes((directory / "w.bin").read_bytes()[:keep])


def _foreign_directory(directory: Path) -> None:
    _small()(directory)
    (directory / "out").mkdir()
    (directory / "out" / "thesis.txt").write_text("do not lose me")


def _manifest(directory: Path, **changes: object) -> None:
    path = directory / "artifact" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_bytes(content)


MISTAKES = {
    "missing file": Mistake("compile nowhere.onnx -o out", "there is no file nowhere.onnx"),
    "name of a file that cannot be": Mistake(f"compile {'x' * 300} -o out", "xxx: File name too long"),
    "name of a directory that cannot be": Mistake(f"tune m.onnx -o {'x' * 300}", "xxx: File name too long", _small()),
    "name of a session that cannot be": Mistake(f"status {'x' * 300}", "xxx: File name too long"),
    "a directory": Mistake("compile . -o out", "is a directory"),
    "not ONNX": Mistake("compile m.onnx -o out", "is not an ONNX model", _write("m.onnx", b"hello, I am a text\n" * 9)),
    "zero bytes": Mistake("compile m.onnx -o out", "m.onnx is empty", _write("m.onnx", b"")),
    "truncated": Mistake("compile m.onnx -o out", "truncated", _truncated),
    "external data missing": Mistake("compile m.onnx -o out", "external data", lambda d: _external(d, None)),
    "external data short": Mistake("compile m.onnx -o out", "external data", lambda d: _external(d, 7)),
    "unsupported operator": Mistake(
        "compile m.onnx -o out", "acme.Frobnicate (the node of 'y')", _small(op="Frobnicate", domain="acme")
    ),
    "unknown zoo name": Mistake("compile zoo:resnet19 -o out", "did you mean 'resnet18'"),
    "unknown target": Mistake("compile zoo:tiny_cnn -o out --target gpu7", "unknown target 'gpu7'"),
    "unknown CPU": Mistake(
        "compile zoo:tiny_cnn -o out --target cpu:neoverse-n11", "unknown target 'cpu:neoverse-n11'"
    ),
    "shape is no shape": Mistake(
        "compile m.onnx -o out --shape x=1xthree", "--shape 'x=1xthree' makes no sense", _small()
    ),
    "shapes with zero": Mistake("compile m.onnx -o out --shape x=0,1x3x8x8", "of numbers above zero", _small()),
    "shape of zero": Mistake("compile m.onnx -o out --shape x=0x3x8x8", "reads a tensor without elements", _small()),
    "shape of another rank": Mistake(
        "compile m.onnx -o out --shape x=1x3", "has 2 axes, but input 'x' has 4", _small()
    ),
    "shape that contradicts": Mistake("compile m.onnx -o out --shape x=1x4x8x8", "contradicts input 'x'", _small()),
    "shape of no input": Mistake(
        "compile m.onnx -o out --shape y=1x3x8x8", "the model does not have: it has x", _small()
    ),
    "dynamic axis": Mistake(
        "compile m.onnx -o out", "input 'x' is dynamic in axis 0 (batch), 3 (w)", _small(width="w")
    ),
    "output is a file": Mistake("compile zoo:tiny_cnn -o m.onnx", "is a file", _small()),
    "output is not ours": Mistake("compile m.onnx -o out", "not a compiled model", _foreign_directory),
    "output not writable": Mistake("compile m.onnx -o /proc/nowhere/out", "cannot write", _small()),
    "input data missing": Mistake("compile zoo:tiny_cnn -o out --input-data no.npz", "there is no file no.npz"),
    "input data of another model": Mistake(
        "compile m.onnx -o out --input-data d.npz",
        "--input-data has 'z'",
        lambda d: (_small()(d), np.savez(d / "d.npz", z=np.zeros(3))),
    ),
    "saved program is none": Mistake(
        "compile m.pt2 -o out", "not a saved torch.export program", _write("m.pt2", b"x" * 99)
    ),
    "no artifact": Mistake("run nowhere --random", "there is no directory nowhere"),
    "directory is no artifact": Mistake("run . --random", "is not a compiled model"),
    "run without inputs": Mistake("run artifact", "give --input FILE or --random", needs_artifact=True),
    "input file is none": Mistake(
        "run artifact --input x.npy", "x.npy is not a NumPy file", _write("x.npy", b"?"), True
    ),
    "input of another shape": Mistake(
        "run artifact --input x.npy",
        "has to be float32[1x3x32x32]",
        lambda d: np.save(d / "x.npy", np.zeros((1, 3), np.float32)),
        True,
    ),
    "artifact of another architecture": Mistake(
        "run artifact --random", "was compiled for m68k", lambda d: _manifest(d, architecture="m68k"), True
    ),
    "damaged artifact": Mistake(
        "bench artifact", "damaged", lambda d: (d / "artifact" / "weights.bin").write_bytes(b""), True
    ),
    "unknown baseline": Mistake(
        "bench artifact --against tensorflow", "unknown baseline 'tensorflow'", needs_artifact=True
    ),
    "pause and rate": Mistake("bench artifact --pause 1ms --rate 5", "exclude each other", needs_artifact=True),
    "pause without sense": Mistake("bench artifact --pause soon", "a pause of 'soon'", needs_artifact=True),
    "rate of nothing": Mistake("bench artifact --rate 0", "give a number above zero", needs_artifact=True),
    "model gone": Mistake(
        "bench artifact --against onnxruntime",
        "the model /gone/m.onnx is gone: give its new place with --model",
        lambda d: _manifest(d, source="/gone/m.onnx"),
        True,
    ),
    "model changed": Mistake(
        "bench artifact --against onnxruntime", "is not the model", lambda d: _manifest(d, fingerprint="0"), True
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake(mistake: Mistake, tmp_path: Path, tiny_artifact: Path, forked_command: ForkedCommands) -> None:
    if mistake.needs_artifact:
        shutil.copytree(tiny_artifact, tmp_path / "artifact")
    mistake.prepare(tmp_path)
    before = _files(tmp_path)
    done = forked_command(*mistake.command.split(), cwd=tmp_path)
    assert mistake.says in done.stderr
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert _files(tmp_path) == before


def _files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_directory_without_permission(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    done = slipstream_command("compile", "zoo:tiny_cnn", "-o", "locked/out", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot write" in done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("compile m.onnx -o out", "cannot read m.onnx"),
        ("tune m.onnx -o out", "cannot read m.onnx"),
        ("quantize m.onnx -o out.onnx --random-calibration 1", "cannot read m.onnx"),
        ("compile locked/m.onnx -o out", "cannot access locked/m.onnx: Permission denied"),
        ("tune m.onnx -o locked/out", "locked/out: Permission denied"),
        ("tune m.onnx -o out --lock locked/m.lock", "locked/m.lock: Permission denied"),
        ("tune m.onnx -o out --priors locked/priors.gz", "locked/priors.gz: Permission denied"),
        ("tune m.onnx -o out --input-data d.npz", "cannot read d.npz: Permission denied"),
        ("status session", "session.json: Permission denied"),
        ("store stats session", "session.json: Permission denied"),
        ("store stats locked", "Permission denied"),
    ],
)
def test_what_must_not_be_read(command: str, says: str, tmp_path: Path, forked_command: ForkedCommands) -> None:
    _small()(tmp_path)
    np.savez(tmp_path / "d.npz", x=np.zeros(3))
    (tmp_path / "session").mkdir()
    (tmp_path / "session" / "session.json").write_text("{}")
    (tmp_path / "locked").mkdir(mode=0)
    for name in ("m.onnx", "d.npz", "session/session.json"):
        (tmp_path / name).chmod(0)
    if os.access(tmp_path / "m.onnx", os.R_OK):
        pytest.skip("root may read everything")
    done = forked_command(*command.split(), cwd=tmp_path)
    assert says in done.stderr
    assert done.returncode == 2
    assert "damaged" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _small()(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ModelError, match=r"cannot read .*m\.onnx"):
        slipstream.load_model(tmp_path / "m.onnx")


def test_debug_shows_the_traceback(tmp_path: Path, forked_command: ForkedCommands) -> None:
    done = forked_command("compile", "nowhere.onnx", "-o", "out", "--debug", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: there is no file")


def test_a_crash_of_native_code_is_an_error_too(tmp_path: Path) -> None:
    """The guard forks: run it in a fresh process, where a child really dies of SIGSEGV."""
    script = (
        "import os, signal\n"
        "from slipstream.cli.guard import run_guarded\n"
        "from slipstream.errors import BuildError\n"
        "try:\n"
        "    run_guarded(lambda progress: os.kill(os.getpid(), signal.SIGSEGV), print)\n"
        "except BuildError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "crashed (SIGSEGV); nothing was written" in done.stdout
