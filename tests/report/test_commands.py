"""`slipstream report` and `slipstream serve` as people type them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slipstream.cli import main
from tests.report.made_up import made_up_session


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return made_up_session(tmp_path / "s").path


def test_it_writes_a_page_into_the_session(session: Path) -> None:
    done = CliRunner().invoke(main, ["report", str(session)])
    assert done.exit_code == 0, done.output
    assert done.output.strip() == str(session / "report.html")
    page = (session / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page.replace("https://github.com/leeoniya/uPlot", "")


def test_json_is_the_structure(session: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["report", str(session), "--json"])
    assert json.loads(done.output)["headline"]["trials"] == 99
    CliRunner().invoke(main, ["report", str(session), "--json", "-o", str(tmp_path / "r.json")])
    assert json.loads((tmp_path / "r.json").read_text()) == json.loads(done.output)


@pytest.mark.parametrize("plot", ["latency", "timeline", "operators", "roofline", "time"])
@pytest.mark.parametrize("operators", [0, 3])
def test_single_plots(plot: str, operators: int, tmp_path: Path) -> None:
    folder = made_up_session(tmp_path / "s", operators=operators, slots=6 if operators else 0, name="$x$ {n}").path
    done = CliRunner().invoke(main, ["report", str(folder), "--png", plot])
    assert done.exit_code == 0, done.output
    assert (folder / f"report-{plot}.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_what_to_install(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(main, ["report", str(session), "--png", "time"])
    assert done.exit_code == 2
    assert "pip install 'slipstream[bench]'" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report", "{tmp}/nowhere"], "start with 'slipstream tune"),
        (["report", "{tmp}"], "is no tuning session"),
        (["report", "{s}", "-o", "{tmp}/no/such/r.html"], "choose another place with -o"),
        (["serve", "{tmp}/nowhere"], "there is no directory"),
        (["serve", "{s}", "--host", "0.0.0.0", "--token", "short"], "at least 16"),
        (["serve", "{s}", "--port", "99999"], "there is no port 99999"),
        (["serve", "{s}", "--host", "192.0.2.1"], "choose another --port"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], says: str, session: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [a.format(tmp=tmp_path, s=session) for a in arguments])
    assert done.exit_code == 2
    assert says in done.output
    assert len(done.output.splitlines()) == 1


def test_serve_prints_an_address_with_a_token_where_one_is_needed(session: Path) -> None:
    for host, needed in (("127.0.0.1", False), ("0.0.0.0", True)):
        command = [sys.executable, "-c", "from slipstream.cli import main; main()", "serve", str(session)]
        command += ["--host", host, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
        assert ("?token=" in line) == needed, line


def test_a_name_cannot_become_markup(tmp_path: Path) -> None:
    evil: Any = {"model": "</script><img src=x onerror=alert(1)>", "name": "<!--<script>{n}\u2028&amp;"}
    folder = made_up_session(tmp_path / "s", **evil).path
    CliRunner().invoke(main, ["report", str(folder)])
    page = (folder / "report.html").read_text()
    assert "<img" not in page
    assert page.count("<script") == 2
    assert "<!--" not in page
