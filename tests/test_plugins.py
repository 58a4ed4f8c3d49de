"""Schedulers, searches, cost models and measurers by name, as objects, and from other packages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

import slipstream
from slipstream import plugins
from slipstream.cli import main
from slipstream.plugins import Context, PluginError
from slipstream.report.view import session_structure
from slipstream.schedulers.round_robin import RoundRobin
from slipstream.session.directory import SessionDirectory
from slipstream.store import Store
from tests.conftest import small_model
from tests.session.synthetic import SyntheticMeasurer

PAGE = (Path(__file__).parents[1] / "docs" / "your-own-scheduler.md").read_text()


class Mine(RoundRobin):
    """A scheduler that counts how often it is asked."""

    picks = 0

    def pick(self, *question: Any) -> str | None:
        self.picks += 1
        return super().pick(*question)


class Other(Mine):
    """Another one."""


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(PluginError) as refused:
        action()
    assert "\n" not in str(refused.value)
    return str(refused.value)


# Names


@pytest.mark.parametrize("kind", ["scheduler", "search", "cost"])
def test_every_name_of_ours_makes_something_with_the_methods_of_its_protocol(kind: plugins.Kind) -> None:
    for name in plugins.names(kind):
        made = plugins.choose(kind, name).make(Context())
        assert plugins.choose(kind, made).make(Context()) is made


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts packages on the path as an installer would: their metadata, and one module each."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(package: str, code: str, kind: plugins.Kind = "scheduler", **names: str) -> None:
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {package}:{attribute}" for name, attribute in names.items()]
        (metadata / "entry_points.txt").write_text("\n".join([f"[{plugins.GROUPS[kind]}]", *lines]) + "\n")
        (tmp_path / f"{package}.py").write_text(code)
        # Entry points may be looked up by the file's time.
        os.utime(tmp_path, (1, len(list(tmp_path.iterdir()))))

    yield install
    for module in ("fair", "rival", "broken"):
        sys.modules.pop(module, None)


FAIR = (
    "class Fair:\n    def __init__(self, context): self.seed = context.seed\n    def pick(self, operators, slot): ...\n"
)


def test_a_name_of_another_package(installed: Any) -> None:
    installed("fair", FAIR, **{"Fair-Share": "Fair"})
    assert "fair" not in sys.modules
    chosen = plugins.choose("scheduler", "fair_share")
    assert (chosen.name, chosen.package, chosen.is_ours) == ("fair_share", "fair", False)
    assert chosen.make(Context(seed=5)).seed == 5
    assert [(o.name, o.package) for o in plugins.offers("scheduler")][-1] == ("fair_share", "fair")
    said = refusal(lambda: plugins.choose("scheduler", "magic"))
    assert re.search(r"no scheduler 'magic'; choose one of dynatune, ucb, .*sequential; from fair: fair_share$", said)
    assert refusal(lambda: plugins.choose("search", "fair_share")).startswith("there is no search 'fair_share'")


def test_names_that_clash(installed: Any) -> None:
    installed("fair", FAIR, share="Fair", gradient="Fair")
    installed("rival", FAIR, share="Fair")
    said = refusal(lambda: plugins.choose("scheduler", "share"))
    assert said == "the scheduler 'share' is in the packages fair and rival: uninstall all but one of them"
    assert plugins.choose("scheduler", "gradient").is_ours
    taken = [(o.name, o.package) for o in plugins.offers("scheduler") if "the name is taken" in o.about]
    assert taken == [("gradient", "fair"), ("share", "fair"), ("share", "rival")]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import no_such_module", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        ("raise ValueError('one\\ntwo')", "cannot be imported (ValueError: one)"),
        ("Fair = 5", "cannot be called with one slipstream.plugins.Context"),
        ("class Fair: pass", "is no scheduler: it has no pick()"),
        (
            "class Fair:\n    def pick(self, operators, slot): ...",
            "cannot be called with one slipstream.plugins.Context",
        ),
    ],
)
def test_a_package_that_cannot_be_used_is_named_when_it_is_chosen(installed: Any, code: str, says: str) -> None:
    installed("broken", code, share="Fair")
    assert "broken" in [offer.package for offer in plugins.offers("scheduler")]
    plugins.choose("scheduler", "dynatune")
    said = refusal(lambda: plugins.choose("scheduler", "share"))
    assert "'share' of the package broken" in said
    assert says in said


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def Fair(context): return 1 / 0", "could not be made (ZeroDivisionError: division by zero)"),
        ("def Fair(context): return 5", "is no scheduler: it has no pick()"),
    ],
)
def test_a_factory_that_fails(installed: Any, code: str, says: str) -> None:
    installed("broken", code, share="Fair")
    said = refusal(lambda: plugins.make("scheduler", "share", Context()))
    assert "'share' of the package broken" in said
    assert says in said


# Objects


@pytest.mark.parametrize(
    ("kind", "choice", "says"),
    [
        ("scheduler", object(), "builtins:object is no scheduler: it has no pick()"),
        ("scheduler", 5, "is no scheduler"),
        ("scheduler", Mine, "pass an object, Mine(...)"),
        ("search", type("Half", (), {"propose": lambda self, question: []})(), "is no search: it has no uses_score"),
        ("cost", object(), "is no cost model: it has no score(), learn(), state(), restore()"),
        ("measurer", object(), "is no measurer: it has no measure(), close()"),
        ("measurer", lambda: 5, "cannot be called with one slipstream.plugins.Context"),
    ],
)
def test_what_lacks_a_method_is_refused_before_anything_is_done(
    kind: str, choice: Any, says: str, tmp_path: Path
) -> None:
    said = refusal(lambda: slipstream.tune("no such model", tmp_path / "out", **{kind: choice}))
    assert says in said
    assert list(tmp_path.iterdir()) == []


def test_objects_in_settings_and_measurers_that_contradict_are_refused(tmp_path: Path) -> None:
    def tune(**options: Any) -> Callable[[], object]:
        return lambda: slipstream.tune("no such model", tmp_path / "out", **options)

    assert "pass the object as scheduler=" in refusal(tune(settings={"scheduler": Mine()}))
    assert "needs --rpc HOST:PORT" in refusal(tune(measurer="rpc"))
    assert "leave --rpc out" in refusal(tune(measurer="local", rpc="127.0.0.1:9190", rpc_key="pi"))


def test_a_session_with_objects_stores_their_classes_and_needs_them_again(tmp_path: Path) -> None:
    onnx.save(small_model(batch=1), tmp_path / "small.onnx")
    mine, directory = Mine(), tmp_path / "out"
    measurer = SyntheticMeasurer()
    slipstream.tune(
        tmp_path / "small.onnx", directory, trials=4, effort="quick", search="random", scheduler=mine, measurer=measurer
    )
    assert mine.picks
    folder = SessionDirectory.read(directory)
    with Store.open(folder.store, read_only=True) as store:
        record = store.session(folder.session)
        assert store.hardware(record.hardware)["measurer"] == "slipstream.testing.measurer:SyntheticMeasurer"
    assert record.options["settings"]["scheduler"] == "tests.test_plugins:Mine"
    assert record.options["measurer"] == "slipstream.testing.measurer:SyntheticMeasurer"

    said = refusal(lambda: slipstream.resume(directory, trials=2))
    assert said.startswith("this session's scheduler was a Python object, tests.test_plugins:Mine: go on from Python")
    assert said.endswith(f"slipstream.resume({str(directory)!r}, scheduler=...)")
    assert "measurer=...)" in refusal(lambda: slipstream.resume(directory, trials=2, scheduler=Mine()))
    for wrong in (Other(), "dynatune"):
        assert "is 'tests.test_plugins:Mine', not" in refusal(
            lambda wrong=wrong: slipstream.resume(directory, scheduler=wrong)
        )
    assert "leave search= out" in refusal(
        lambda: slipstream.resume(directory, scheduler=Mine(), search="diffusion", measurer=measurer)
    )
    by_command = CliRunner().invoke(main, ["resume", str(directory), "--trials", "2"])
    assert (by_command.exit_code, by_command.stderr.count("\n")) == (2, 1)
    assert "scheduler=...)" in by_command.stderr

    again = Mine()
    assert slipstream.resume(directory, trials=2, scheduler=again, measurer=lambda context: measurer).trials == 6
    assert again.picks
    shown = session_structure(directory)["command"]
    assert "scheduler=Mine(...)" in shown
    assert "measurer=SyntheticMeasurer(...)" in shown


# The command


def command(*words: object, path: Path | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80"}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))
    line = [sys.executable, "-c", "from slipstream.cli import main; main()", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=300, check=False, **options)


def test_help_lists_every_name_without_importing_anything_heavy() -> None:
    code = "import sys; from slipstream.cli import main; main(['tune', '--help'], standalone_mode=False); "
    code += "print('heavy:', {'numpy', 'tvm', 'onnx', 'xgboost'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy: set()\n")
    from slipstream.session.settings import PARTS

    for kind in plugins.KINDS:
        text = done.stdout.partition(f"\n--{kind} NAME, ")[2].partition("\n\n")[0]
        listed = re.findall(r"^  (\w+)  +\w", text, re.MULTILINE)
        assert listed[: len(plugins.names(kind))] == list(plugins.names(kind))
        assert text.count("[default]") == 1
    parts = done.stdout.partition("\n--without PARTS, ")[2]
    assert re.findall(r"^  (\w+)  +\w", parts, re.MULTILINE) == list(PARTS)


def example(folder: Path) -> None:
    """The files of the docs' example, exactly as they stand there."""
    files = re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in files] == ["proportional.py", "pyproject.toml", "test_proportional.py"]
    folder.mkdir()
    for name, text in files:
        (folder / name).write_text(text)


def test_the_example_of_the_docs_is_installed_listed_and_chosen(tmp_path: Path) -> None:
    source, site = tmp_path / "slipstream-proportional", tmp_path / "site"
    example(source)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", site, source], check=True, timeout=120)

    listed = command("tune", "--help", path=site).stdout
    assert re.search(r"^  proportional +from the package slipstream-proportional$", listed, re.MULTILINE)
    said = command("tune", "zoo:tiny_cnn", "-o", "out", "--scheduler", "fair", path=site, cwd=tmp_path).stderr
    assert said.endswith("from slipstream-proportional: proportional\n")

    onnx.save(small_model(batch=1), tmp_path / "m.onnx")
    words = "tune m.onnx -o out --trials 5 --scheduler proportional --effort quick --json"
    done = command(*words.split(), path=site, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["settings"]["scheduler"] == "proportional"
    assert events[-1]["trials"] == 5
    assert any(event["event"] == "slot" for event in events)

    # Here the package is not installed: the report does not need it, going on does.
    report = CliRunner().invoke(main, ["report", str(tmp_path / "out")])
    assert report.exit_code == 0, report.stderr
    assert "--scheduler proportional" in (tmp_path / "out" / "report.html").read_text()
    said = CliRunner().invoke(main, ["resume", str(tmp_path / "out"), "--trials", "1"]).stderr
    assert "there is no scheduler 'proportional'" in said


def test_the_example_of_the_docs_passes_the_suite(tmp_path: Path) -> None:
    example(tmp_path / "example")
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "example"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout
