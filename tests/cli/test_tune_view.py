"""What a person, a log and a program see of a tuning session."""

from __future__ import annotations

import errno
import fcntl
import io
import itertools
import json
import math
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from slipstream.cli.line_output import LineOutput
from slipstream.cli.tune_brief import BriefView
from slipstream.cli.tune_frame import HINT, frame
from slipstream.cli.tune_json import JsonView
from slipstream.cli.tune_live import LiveView
from slipstream.cli.tune_plain import PlainView
from slipstream.cli.tune_plot import bar, curve, trend
from slipstream.cli.tune_quiet import QuietView
from slipstream.cli.tune_result import render_result
from slipstream.cli.tune_view import make_view
from slipstream.errors import SlipstreamError
from slipstream.session.events import PHASES, Event, OperatorProgress, Remaining, Snapshot
from slipstream.session.quantities import duration, factor, latency, one_line
from tests.cli.screen import Screen
from tests.cli.synthetic_tuning import SyntheticTuning, new_snapshot, operator_rows

_ROOT = Path(__file__).parents[2]
_SIZES = ((100, 30), (60, 20), (160, 50), (40, 12), (20, 5), (1, 1))


def _nobody(event: Event, snapshot: Snapshot) -> None:
    pass


def _tuned(operators: int) -> Snapshot:
    return SyntheticTuning(_nobody, operators).play()


def _text(snapshot: Snapshot, width: int = 100, height: int = 30, **options: Any) -> str:
    return "\n".join(line.plain.rstrip() for line in frame(snapshot, width, height, **options))


@pytest.mark.parametrize("models", [2, 40])
def test_the_picture_has_a_line_for_each_model_that_there_is_room_for(models: int) -> None:
    snapshot = _tuned(5)
    snapshot.phase = "tune"
    snapshot.calls = {f"net{n}": {row.key: 1 for row in snapshot.operators} for n in range(models)}
    snapshot.weights = dict.fromkeys(snapshot.calls, 1) | {"net0": 3}
    for width, height in _SIZES:
        lines = frame(snapshot, width, height)
        assert len(lines) <= height
        assert all(line.cell_len <= width for line in lines)
    text = _text(snapshot)
    assert re.search(r"^net0 +\S+ .?s  [\d.]+x as fast  weight 3$", text, re.MULTILINE)
    assert "net1 " in text
    assert (f"... and {models - 4} more" in text) == (models > 5)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (412e-6, "412 µs"),
        (9.806e-3, "9.81 ms"),
        (0.99996e-3, "1.00 ms"),
        (9.996e-3, "10.0 ms"),
        (1.5, "1.50 s"),
        (1234.0, "1230 s"),
        (3e-9, "3.00 ns"),
        (2e-10, "0.2 ns"),
        (0.0, "0 ms"),
        (math.inf, "-"),
        (math.nan, "-"),
    ],
)
def test_latency(seconds: float, text: str) -> None:
    assert latency(seconds) == text


@given(st.floats(1e-8, 1e2))
def test_latency_keeps_three_digits(seconds: float) -> None:
    number, unit = latency(seconds).split()
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * scale == pytest.approx(seconds, rel=0.0051)
    assert len(number.replace(".", "")) == 3


def test_durations_and_factors() -> None:
    assert [duration(s) for s in (0, 59.9, 259, 3859, -1, math.inf)] == ["0:00", "0:59", "4:19", "1:04:19", "0:00", "-"]
    assert [factor(2, 1.5), factor(500, 1), factor(math.inf, 1), factor(0, 0)] == ["1.33x", "500x", "-", "-"]
    assert one_line("a\x1b[2Jb\nc→") == "a [2Jb c→"


def test_a_curve_goes_from_the_top_left_to_the_bottom_right() -> None:
    lines = curve([(0.0, math.inf), (5.0, 20.0), (7.5, 15.0), (9.0, 10.0)], 10.0, width=10, height=3)
    assert [len(line) for line in lines] == [10, 10, 10]
    assert all(line[:4].isspace() for line in lines), "nothing is known in the first half"
    assert [line.rstrip() != "" for line in lines] == [True] * 3
    assert lines[0][5] != " "
    assert lines[0][-1] == " "
    assert lines[-1][-1] != " "
    assert lines[-1][5] == " "


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(1e-6, 1e3) | st.just(math.inf)), max_size=50))
def test_a_curve_has_no_gap_after_the_first_value(points: list[tuple[float, float]]) -> None:
    lines = curve(sorted(points), 100.0, width=12, height=4)
    filled = "".join("x" if any(line[column] != " " for line in lines) else " " for column in range(12))
    assert re.fullmatch(" *x*", filled)
    assert ("x" in filled) == any(math.isfinite(value) for _, value in points)


def test_trends_and_bars() -> None:
    assert trend([math.inf, 4.0, 3.0, 2.0, 1.0], 4) == "█▆▃▁"
    assert trend([math.inf, 2.0], 4) == " ▁"
    assert trend([1.0, 0.999, 0.998], 8) == "▂▁▁", "a thousandth is no cliff"
    assert trend([], 4) == ""
    assert [bar(fraction, 2) for fraction in (0.0, 0.5, 0.8, 2.0)] == ["  ", "█ ", "█▋", "██"]


def _odd_snapshots() -> dict[str, Snapshot]:
    odd_names = operator_rows(4, start=2e-3, best=1e-3)
    names = ("[red]x[/red] [/]" + 50 * "long ", "畳み込み" * 20, "a\nb\x1b[31m", "")
    for row, name in zip(odd_names, names, strict=True):
        row.name = name
    return {
        "nothing": new_snapshot([]),
        "nothing timed": new_snapshot(operator_rows(5), phase="defaults", current="op0002", doing="timing 3 of 5"),
        "one": _tuned(1),
        "many": _tuned(1000),
        "odd names": new_snapshot(
            odd_names, model="[b]m[/]", target="[/x]", latency=0.01, doing="[bold]", phase="tune"
        ),
        "zero": new_snapshot(operator_rows(1, start=0.0, best=0.0), start_latency=0.0, latency=0.0, curve=[(0.0, 0.0)]),
        "budgets": new_snapshot(
            operator_rows(3), remaining=Remaining(5000.0, 1, 8e-3, 1.7), failures={"[crash]": 3}, phase="tune"
        ),
    }


@pytest.mark.parametrize("case", _odd_snapshots())
@pytest.mark.parametrize("size", _SIZES)
def test_every_picture_fits(case: str, size: tuple[int, int]) -> None:
    lines = frame(_odd_snapshots()[case], *size, note="a [note]")
    assert 1 <= len(lines) <= size[1]
    for line in lines:
        assert cell_len(line.plain) <= size[0]
        assert line.plain.isprintable()


def test_the_picture_says_what_matters() -> None:
    snapshot = _tuned(21)
    snapshot.phase, snapshot.doing, snapshot.current = "tune", "timing 12 of 32", snapshot.operators[0].key
    snapshot.remaining = Remaining(seconds=260.0, trials=512, until_latency=8e-3, fraction_used=0.64)
    text = _text(snapshot, waited=1.0)
    for said in (
        "resnet18",
        f"{latency(snapshot.latency, 4)}  {factor(snapshot.start_latency, snapshot.latency)} as fast",
        f"{latency(snapshot.start_latency, 4)} at the start",
        "64%  4:19 left, 512 trials left, until 8.00 ms",
        "timing 12 of 32",
        f"wrong result {snapshot.failures['wrong result']}",
        HINT,
    ):
        assert said in text
    row = snapshot.operators[0]
    marked = re.search(r"^▸ (.*)$", text, re.MULTILINE)
    assert marked
    assert latency(row.best) in marked[1]
    assert factor(row.start, row.best) in marked[1]
    assert f" {row.trials} " in marked[1]


@pytest.mark.parametrize(("phase", "hint"), [(phase, phase in ("prepare", "defaults", "tune")) for phase in PHASES])
def test_the_hint_is_there_while_it_is_true(phase: str, hint: bool) -> None:
    assert (HINT in _text(new_snapshot(operator_rows(2), phase=phase))) == hint


def test_an_unlimited_budget_is_said() -> None:
    assert "no budget set" in _text(new_snapshot(operator_rows(2)))


def test_the_biggest_shares_come_first_and_the_current_operator_is_always_there() -> None:
    snapshot = _tuned(1000)
    snapshot.phase, snapshot.current = "tune", "op0999"
    rows = [line for line in _text(snapshot).splitlines() if "%" in line and "x " in line]
    shares = [float(re.search(r"([\d.]+)%", line)[1]) for line in rows if not line.startswith("▸")]  # type: ignore[index]
    assert shares == sorted(shares, reverse=True)
    assert rows[-1].startswith("▸")
    rest = re.search(r"\.\.\. and (\d+) more, ([\d.]+)%", _text(snapshot))
    assert rest
    assert int(rest[1]) + len(rows) == 1000
    assert float(rest[2]) + sum(shares) == pytest.approx(100, abs=1)


def test_operators_without_a_time_are_counted() -> None:
    rows = operator_rows(40)
    rows[7].start = rows[7].best = 1e-3
    text = _text(new_snapshot(rows, phase="defaults"))
    assert "no latency yet" in text
    assert "1 of 40 operators timed" in text
    assert re.search(r"operator .*\n  \S.* 1\.00 ms +100\.0%", text), "the one that has a time comes first"
    assert re.search(r"and (\d+) more, \1 without a time yet", text)


class _Output(io.StringIO):
    """Remembers when it was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def write(self, text: str) -> int:
        self.times.append(time.monotonic())
        return super().write(text)

    def wait_for(self, text: str, after: int = 0) -> str:
        """What was written from position `after` on, once `text` is in it."""
        end = time.monotonic() + 10.0
        while text not in self.getvalue()[after:] and time.monotonic() < end:
            time.sleep(0.02)
        assert text in self.getvalue()[after:]
        return self.getvalue()[after:]


def _live(output: io.StringIO) -> LiveView:
    return LiveView(Console(file=output, force_terminal=True, color_system="256", width=100, height=30))


def test_the_screen_shows_the_snapshot_and_the_last_picture_stays() -> None:
    output = _Output()
    with _live(output) as view:
        tuning = SyntheticTuning(view, 21)
        tuning.play()
        screen = Screen().feed(output.wait_for("done in"))
        assert screen.in_alternate
        assert not screen.cursor_shown
        assert screen.lines()[: len(_text(tuning.snapshot).splitlines())] == _text(tuning.snapshot).splitlines()
    screen = Screen().feed(output.getvalue())
    assert not screen.in_alternate
    assert screen.cursor_shown
    assert [line.rstrip() for line in screen.normal] == [
        *_text(tuning.snapshot, height=29, final=True).splitlines(),
        "",
    ]


def test_changed_lines_alone_are_drawn() -> None:
    output = _Output()
    with _live(output) as view:
        snapshot = _tuned(21)
        snapshot.phase = "tune"
        view(Event("started", 0.0), snapshot)
        before = len(output.wait_for("failed: "))
        snapshot.doing = "timing 7 of 16"
        view(Event("trial", 0.0), snapshot)
        drawn = output.wait_for("timing 7 of 16", before)
    assert "calls" not in drawn, "the heading of the table is on the screen already"


@pytest.mark.timing
def test_many_events_make_few_pictures_and_none_make_next_to_no_work() -> None:
    output = _Output()
    snapshot = _tuned(100)
    snapshot.phase = "tune"
    with _live(output) as view:
        view(Event("started", 0.0), snapshot)
        output.wait_for(HINT)
        output.times.clear()
        began = time.monotonic()
        while time.monotonic() < began + 1.0:
            snapshot.elapsed += 1.0
            view(Event("trial", snapshot.elapsed), snapshot)
            time.sleep(0.001)
        assert 1 <= len(output.times) <= 9
        # Threads that other tests have left in this process may work now and then.
        assert min(_busy(0.5) for _ in range(4)) < 0.05 * 0.5


def _busy(seconds: float) -> float:
    """Processor time of this process while the test sleeps."""
    before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before


def test_an_exception_gives_the_terminal_back() -> None:
    def fail(phase: str) -> None:
        if phase == "compile":
            print("a line from a library")
            raise RuntimeError("the session failed")

    output, stdout, stderr = _Output(), sys.stdout, sys.stderr
    with pytest.raises(RuntimeError, match="the session failed"), _live(output) as view:
        SyntheticTuning(view, 3).play(before_phase=fail)
    screen = Screen().feed(output.getvalue())
    assert not screen.in_alternate
    assert screen.cursor_shown
    assert (sys.stdout, sys.stderr) == (stdout, stderr)
    assert "as fast" in "\n".join(screen.normal)


def test_what_is_printed_meanwhile_comes_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    with _live(_Output()) as view:
        view(Event("started", 0.0), new_snapshot([]))
        print("a line from a library")
    assert capsys.readouterr().err == "a line from a library\n"


class _HangsUp(_Output):
    """A terminal that is closed after its first pictures."""

    def write(self, text: str) -> int:
        if len(self.times) > 3:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


def test_a_terminal_that_goes_away_does_not_stop_the_session() -> None:
    stdout = sys.stdout
    with _live(_HangsUp()) as view:
        SyntheticTuning(view, 3, seconds=1.0, pause=1.0).play()
    assert sys.stdout is stdout


def test_a_view_without_events_leaves_the_terminal_alone() -> None:
    output = _Output()
    with _live(output):
        pass
    assert output.getvalue() == ""


def test_a_message_stays_in_the_picture() -> None:
    output = _Output()
    with _live(output) as view:
        view(Event("message", 0.0, {"text": "the device is back [again]"}), new_snapshot([]))
    assert "the device is back [again]" in "\n".join(Screen().feed(output.getvalue()).normal)


class _Terminal:
    """A real terminal with a session on it."""

    def __init__(self, *arguments: str, size: tuple[int, int]) -> None:
        self._master, slave = pty.openpty()
        self.resize(*size)
        command = [sys.executable, "-m", "tests.cli.synthetic_tuning", *arguments]
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**environment, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._read = b""

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def output(self, until: bytes, seconds: float = 20.0) -> str:
        """Everything up to now, once `until` has been seen."""
        end = time.monotonic() + seconds
        while until not in self._read and time.monotonic() < end:
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self._read += os.read(self._master, 65536)
                except OSError:  # the other side is closed
                    break
        assert until in self._read, self._read[-2000:]
        return self._read.decode(errors="replace")

    def close(self) -> int:
        code = self.process.wait(timeout=20)
        os.close(self._master)
        return code


@pytest.mark.usefixtures("ordinary_signals")
def test_ctrl_c_on_a_real_terminal_that_was_resized() -> None:
    terminal = _Terminal("auto", "30", "60", size=(100, 30))
    terminal.output(until="▸".encode())
    terminal.resize(60, 20)
    terminal.output(until=b"\x1b[20;1H" + b"\x1b[2m" + HINT.encode())
    terminal.press(b"\x03")
    output = terminal.output(until=b"interrupted").replace("^C", "")
    assert terminal.close() == 1
    screen = Screen().feed(output)
    assert not screen.in_alternate
    assert screen.cursor_shown
    assert any(line.startswith("resnet18") for line in screen.normal)
    assert max(len(line.rstrip()) for line in screen.normal) <= 60
    assert HINT not in "\n".join(screen.normal)


def _plain(operators: int = 21) -> tuple[list[str], Snapshot]:
    output = io.StringIO()
    with PlainView(LineOutput(output)) as view:
        snapshot = SyntheticTuning(view, operators).play()
    return output.getvalue().splitlines(), snapshot


def test_a_log_has_a_line_for_everything_worth_one() -> None:
    lines, snapshot = _plain()
    assert all(line.isprintable() for line in lines)
    assert lines[0] == "   0:00  tuning resnet18 for llvm -mcpu=cascadelake -num-cores=2, 21 operators, 1:00 left"
    assert [line.split()[1] for line in lines if len(line.split()) == 2] == ["defaults", "tune", "compile", "verify"]
    slots = [line for line in lines if " slot " in line]
    assert len(slots) == snapshot.slots
    pattern = (
        r" +0:\d\d  slot 1: \S.* [\d.]+ .s \(\d\.\d\dx this slot, .* in all\), model [\d.]+ ms \(.*x\), 0:\d\d left"
    )
    assert re.match(pattern, slots[0])
    assert slots[-1].endswith(" failed")
    assert lines[-1].split("finished: ")[1].startswith(f"model {latency(snapshot.latency)}")
    for kind, count in snapshot.failures.items():
        assert f"{kind} {count}" in lines[-1]


def test_improvements_in_a_log_are_rationed() -> None:
    times = [line.split()[0] for line in _plain()[0] if "improved" in line]
    seconds = [int(minutes) * 60 + int(rest) for minutes, rest in (clock.split(":") for clock in times)]
    assert len(seconds) > 2
    assert all(later - earlier >= 4 for earlier, later in itertools.pairwise(seconds))


def test_a_log_survives_odd_sessions_and_encodings() -> None:
    for snapshot in _odd_snapshots().values():
        raw = io.BytesIO()
        view = PlainView(LineOutput(io.TextIOWrapper(raw, encoding="ascii")))
        for kind in ("started", "phase", "slot", "trial", "slot_done", "improved", "message", "finished"):
            view(Event(kind, 0.0), snapshot)
        assert raw.getvalue().count(b"\n") == 5


def test_every_event_is_a_line_of_json() -> None:
    output, kinds = io.StringIO(), []
    with JsonView(LineOutput(output)) as view:

        def watch(event: Event, snapshot: Snapshot) -> None:
            kinds.append(event.kind)
            view(event, snapshot)

        snapshot = SyntheticTuning(watch, 5).play()
    events = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [event["event"] for event in events] == kinds
    assert [list(event)[:2] for event in events] == [["event", "elapsed"]] * len(events)
    assert all(("snapshot" in event) == (event["event"] in ("slot_done", "finished")) for event in events)
    assert events[-1]["snapshot"]["latency"] == snapshot.latency
    assert events[-1]["snapshot"]["failures"] == snapshot.failures


def test_json_has_null_for_what_is_no_number() -> None:
    output = io.StringIO()
    data = {"best": math.inf, "nested": {"a": [math.nan, (1.5, -math.inf)]}, "event": "not this", "path": Path("x")}
    JsonView(LineOutput(output))(Event("finished", 1.5, data), new_snapshot([]))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    said = json.loads(output.getvalue(), parse_constant=refuse)
    assert said["event"] == "finished"
    assert said["best"] is None
    assert said["nested"] == {"a": [None, [1.5, None]]}
    assert said["path"] == "x"
    assert said["snapshot"]["latency"] is None


@pytest.mark.parametrize("mode", ["json", "plain"])
def test_a_reader_may_leave(mode: str) -> None:
    command = f"{sys.executable} -m tests.cli.synthetic_tuning {mode} 1 3 | head -n 2"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], cwd=_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("mode", "expected"), [("auto", BriefView), ("plain", PlainView), ("json", JsonView), ("quiet", QuietView)]
)
def test_the_view_for_a_pipe(mode: Any, expected: type) -> None:
    output = io.StringIO()
    for console in (Console(file=output), Console(file=output, force_terminal=True)):
        with make_view(mode, console) as view:
            assert type(view) is expected
            view(Event("started", 0.0), new_snapshot([]))
    assert "\x1b" not in output.getvalue()
    assert bool(output.getvalue()) == (mode != "quiet")


@pytest.mark.parametrize(("mode", "said"), [("live", "needs a terminal"), ("fancy", "no view 'fancy': choose auto")])
def test_a_view_that_cannot_be(mode: Any, said: str) -> None:
    with pytest.raises(SlipstreamError, match=said):
        make_view(mode, Console(file=io.StringIO()))


def _result(snapshot: Snapshot, width: int = 100, end_to_end: float | None = None) -> str:
    console = Console(file=io.StringIO(), record=True, width=width)
    console.print(render_result(snapshot, end_to_end))
    return console.export_text()


def _gained(key: str, start: float, best: float, weight: int = 1) -> OperatorProgress:
    return OperatorProgress(key, f"[b]{key}[/b] conv2d", weight, start, best)


def test_the_result() -> None:
    rows = [_gained("a", 2e-3, 1e-3), _gained("b", 1e-3, 0.5e-3, weight=4), _gained("c", math.inf, 1e-3)]
    rows += [_gained("d", 1e-3, 1e-3)]
    snapshot = new_snapshot(rows, start_latency=8e-3, latency=5e-3, elapsed=300.0, trials=640, slots=20)
    text = _result(snapshot, width=60, end_to_end=5.2e-3)
    assert "resnet18  5:00, 640 trials, 20 slots" in text
    assert re.search(r"start +8\.000 ms\s*\n.*best +5\.000 ms +1\.60x as fast", text)
    assert re.search(r"whole model +5\.200 ms", text)
    table = text.split("gained most")[1].splitlines()
    assert [line.split()[0] for line in table[1:] if line] == ["[b]b[/b]", "[b]a[/b]"]
    assert table[1].split()[2:] == ["4", "1.00", "ms", "500", "µs", "2.00x", "2.00", "ms"]


@pytest.mark.parametrize("case", _odd_snapshots())
@pytest.mark.parametrize("width", [60, 100, 160])
def test_a_result_of_anything(case: str, width: int) -> None:
    snapshot = _odd_snapshots()[case]
    text = _result(snapshot, width, end_to_end=math.inf)
    assert ("gained most" in text) != ("no operator became faster" in text)
    assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= width
