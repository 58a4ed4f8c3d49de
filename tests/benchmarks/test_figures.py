"""Every figure in README.md and docs/ is what the committed raw results say, or a setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import docs
from slipstream.errors import SlipstreamError

# What looks measured: a number with a unit, a ratio, a spread.
_NUMBER = r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?"
MEASURED = re.compile(
    rf"{_NUMBER}x\b"
    rf"|{_NUMBER} ?(?:ms|µs|%|GFLOP/s|TFLOP/s|GB/s|MB|KB|GB|s\b|seconds\b|trials a second|trials/s)"
    rf"|{_NUMBER} times (?:as|sooner|faster|slower|longer|fewer|the|than)"
    rf"|\({_NUMBER} - \d"
    r"|\| \**\d+\.\d+"
    r"|\d(?:\.\d+)?e-\d"
)
# Settings, limits, aims and definitions, as they stand on the page.
SETTINGS = {
    "README.md": ["times after pauses of 20 ms"],
    "compiling.md": ["within about 1e-6 of exact"],
    "diffusion.md": ["2.5 times on CPUs"],  # what the paper says
    "dynatune.md": [
        "0.2 under 1 ms",
        "more than 20 %",
        "at most 20 times the best",
        "at 1 % and at 60 % of the peak",
        "within 1 % of its lowest latency",
        "within 5 % of the lowest latency",
        "1.15 times the oracle",
        "90 % intervals",
        "within 1, 5, 10 and 25 % of the lowest",
        "95 % interval",
        "above 1.2 times the best where",
        "slots of 100 s",
        "time to within 1 % of",
        "to within 1 % it is",
        "to within 5 % only",
        "the time to within 1 %.",
        "reproduced in the time to within 1 %",
        # What the paper says.
        "1.4 % of a slot of 100 s",
        "0.54 on average",
        "within 5 %, within 1 %",
    ],
    "everyday.md": ["missed more than 1 %"],
    "fleet.md": ["over 4 s", "1.3 times as long", "every 5 s", "for 30 s"],
    "getting-started.md": ["95 % interval"],
    "gpu.md": [
        "the same tolerance (1e-4)",
        "| float16 | sm_70 | 1 % |",
        "| bfloat16 | sm_80 | 5 % |",
        "| float32 | sm_80 | 1 % |",
        "is within 1 % of its lowest latency",
        "to within 5, 10 and 25 %:",
        "to within 1, 5, 10 and 25 %.",
    ],
    "how-it-works.md": ["within 5 % of the best"],
    "measuring.md": [
        "takes more than 20 ms and ten times the best",
        "more than 1 % above the best",
        "at least 32 MB and at most 128 MB",
        "it was 32 MB for all",
        "a machine that says it has 260 MB",
        "with 38 MB of weights",
        "and more than 2 s:",
        "Building (30 s) and running (10 s)",
        "every 50 ms",
        "at most 1 MB",
        "over 5 % of the time",
        "over 10 % slower than usual",
        "up to 15 % slower than its best",
        "A turn ends after 2 s",
        "they take over 5 % longer",
        "(300 %, 120 %, 80 %, 50 %, 30 %, 20 %, 10 %, then 1 %)",
        "95 % interval",
        "within 2 %, or 20 samples, or 150 ms",
        "within 2 %, at most 20 samples or 150 ms",
        "end after 3 s in any case",
        "a sample (of about 2 ms",
        "no difference below 0.5 % is pursued. The confidence (95 %)",
    ],
    "precision.md": [  # by a formula; allowed
        "1.4 % for the 4,608",
        "0.16 % for 64",
        "wrong by 1 % of",
        "wrong by 5 % of",
    ],
    "models.md": ["1e-4 for float32, 1e-2 for float16 and TF32, 5e-2 for bfloat16, 1e-9 for float64"],
    "originals.md": ["for at least 300 ms with a timeout of 10 s"],
    "remote-devices.md": ["limits, 60 s", "(30 s)"],
    "report.md": ["90 % of what was expected", "dropped after 10 s"],
    "results.md": [
        "No run was within 10 %",
        "none within 5 %",
        "both its runs are within 25 %",
        "again for 45 s from what had been measured",
        "was tuned for 90 s on two",
        "**After a pause** of 20 ms",
        "The time to within 1 %",
        "below the aim of 50 ms",
    ],
    "runtime.md": [
        "(500 µs at most)",
        "if that is below 100 µs",
        "one for every 2 µs of estimated work",
        "has been gone for 0.2 ms",
    ],
    "serving.md": [
        "one caller after pauses of 20 ms",
        "with its 95 % interval: a bootstrap",
        "with the 95 % interval of each median",
    ],
    "store.md": ["wait up to 30 s", "wrote for 30 s", "again for up to 20 s"],
    "tuning.md": [
        "made again for 20 s",
        "within 5 % of its best",
        "at most 10 % of the time",
        "The reserve is 3 s",
        "10 % for settling",
    ],
    "winograd.md": ["2.25 times fewer", "1e-3 for a measured program, 1e-4 for a compiled model"],
}


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_tables_and_figures_are_those_of_the_raw_results(page: Path) -> None:
    assert docs.filled(page.read_text()) == page.read_text(), "run python -m benchmarks.docs"


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_a_figure_that_looks_measured_is_marked(page: Path) -> None:
    text = _prose(page.read_text())
    for setting in SETTINGS.get(page.name, []):
        assert setting in text, f"{setting!r} is no longer in {page.name}: take it off the list"
        text = text.replace(setting, "")
    assert not MEASURED.findall(text)


def _prose(page: str) -> str:
    """The page in one line, without code, tables and figures that are filled in."""
    page = "".join(docs.CODE.split(page)[::2])
    for hidden in (docs.TABLE, docs.FIGURE, re.compile(r"`[^`]*`")):
        page = hidden.sub("", page)
    return " ".join(page.split())


def test_a_wrong_figure_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "figure", lambda name, key: f"{name} {key}")
    monkeypatch.setattr(docs, "table", lambda name, heading: f"{name} below {heading}")
    monkeypatch.setattr(docs, "source", lambda name: f"of {name}")
    page = "It takes <!--store:best ms-->{}<!--/--> ms.\n" + 2 * "<!-- table: ablation#a b -->\n{}\n<!-- end -->\n"
    # Where it comes from is said once.
    right = page.format("store best ms", "ablation below a b\n\nof ablation", "ablation below a b")
    page = page.format(7, "old", "older")
    assert docs.filled(page) == right == docs.filled(right)
    assert docs.filled(f"```\n{page}```\n") == f"```\n{page}```\n"


def test_what_is_not_there_is_said_in_a_line() -> None:
    with pytest.raises(SlipstreamError, match=r"numbers\(\) of store has no 'worst'; it has: trials"):
        docs.figure("store", "worst")
    with pytest.raises(SlipstreamError, match=r"results/ablation.md has no heading 'vgg99'"):
        docs.table("ablation", "vgg99")


@pytest.mark.parametrize("text", ["1.5x faster", "took 12 ms", "2.1 times as fast", "| **2.19** |", "grew by 7 %"])
def test_what_looks_measured(text: str) -> None:
    assert MEASURED.search(text)


@pytest.mark.parametrize("text", ["conv2d 3x3", "1x3x224x224", "TVM 0.27", "eight trials", "a 5-minute budget"])
def test_what_does_not(text: str) -> None:
    assert not MEASURED.search(text)
