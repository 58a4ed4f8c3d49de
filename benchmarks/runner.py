"""What all benchmarks share: a command line, raw results with their provenance, and tables made from those alone.

A benchmark is a module that ends in `run(__name__)`, or a package whose `__main__` ends in `run("benchmarks.NAME")`,
and has

    a docstring           whose first line says what it shows and, in brackets at its end, how long it takes
    measure(options)      what it measured, fit for JSON; a generator of (part, data) is saved part by part
    markdown(data)        its tables
    numbers(data)         figures that prose may quote, key -> text     (if any)
    picture(data, path)   an SVG                                        (if any)
    arguments(parser)     options of its own                            (if any)
    QUICK                 what these are with --quick, name -> value    (if any)

With parts, `data` is {part: data of that part}: what is in the file stays unless that part is measured again.
See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.machine import describe_machine
from slipstream.errors import SlipstreamError

RESULTS = Path(__file__).parent / "results"
QUICK = Path("build/bench-quick")
_LARGE = 200_000  # characters: longer raw results are compressed

Raw = dict[str, Any]


def titles() -> dict[str, str]:
    """Name -> the first line of its docstring, of every benchmark; none of them is imported."""
    found = {}
    folder = Path(__file__).parent
    files = {path.stem: (path, path) for path in folder.glob("*.py")}
    files |= {path.parent.name: (path, path.with_name("__init__.py")) for path in folder.glob("*/__main__.py")}
    for name, (command, described) in sorted(files.items()):
        if command.read_text().endswith(("run(__name__)\n", f'run("benchmarks.{name}")\n')):
            found[name] = (ast.get_docstring(ast.parse(described.read_text())) or "").splitlines()[0]
    return found


def run(name: str, arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark in the module `name` as a command."""
    benchmark = sys.modules[name]
    assert benchmark.__spec__ is not None
    own_name = benchmark.__spec__.name.removeprefix("benchmarks.")
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(benchmark, own_name, words)
    command = shlex.join(["python", "-m", f"benchmarks.{own_name}", *words])
    try:
        if not options.table:
            measure(benchmark, own_name, options, command)
        if options.table or read(own_name, options.out) is not None:  # none where it was asked to prepare only
            print(make_table(benchmark, own_name, options.out), end="")
    except SlipstreamError as error:
        sys.exit(f"error: {error}")


def parse(benchmark: ModuleType, name: str, words: Sequence[str]) -> argparse.Namespace:
    about = benchmark.__doc__
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smaller version, in a minute at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help=f"folder for the results [{RESULTS.parent.name}/{RESULTS.name}]")
    parser.add_argument("--work", type=Path, help=f"folder for what can be deleted afterwards [build/{name}]")
    parser.add_argument("--table", action="store_true", help="only make the table again, from the raw results alone")
    if hasattr(benchmark, "arguments"):
        benchmark.arguments(parser)
    quick = parser.parse_args(words).quick
    folders = {"out": QUICK, "work": QUICK / "work" / name} if quick else {"out": RESULTS, "work": Path("build", name)}
    parser.set_defaults(**folders, **(getattr(benchmark, "QUICK", {}) if quick else {}))
    return parser.parse_args(words)


def measure(benchmark: ModuleType, name: str, options: argparse.Namespace, command: str) -> None:
    """Measure and save, with date, command, machine and load."""
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    about = _describing(command, options)
    began = time.monotonic()
    measured = benchmark.measure(options)
    if not isinstance(measured, Iterator):
        write(name, {"about": about(time.monotonic() - began), "data": measured}, options.out)
        return
    abouts: dict[str, Callable[[float], dict[str, Any]]] = {}
    seconds: dict[str, float] = {}
    for part, data in measured:
        # A part may come again with more in it; what it is about began when the part before it was done.
        abouts.setdefault(part, about)
        seconds[part] = seconds.get(part, 0.0) + time.monotonic() - began
        raw = read(name, options.out) or {"parts": {}}
        raw["parts"][part] = {"about": abouts[part](seconds[part]), "data": data}
        write(name, raw, options.out)
        make_table(benchmark, name, options.out)
        about, began = _describing(command, options), time.monotonic()


def _describing(command: str, options: argparse.Namespace) -> Callable[[float], dict[str, Any]]:
    """What is told of results, when called with the seconds they took; the load is that of now and of then."""
    load, machine = os.getloadavg(), describe_machine()

    def about(seconds: float) -> dict[str, Any]:
        asked = {"command": command, "seed": options.seed, "seconds": round(seconds, 1)}
        return {**machine, **asked, "load": [load, os.getloadavg()]}

    return about


def read(name: str, folder: Path = RESULTS) -> Raw | None:
    """Raw results of a benchmark, if there are any."""
    plain, packed = folder / f"{name}.json", folder / f"{name}.json.gz"
    if packed.exists():
        found: Raw = json.loads(gzip.decompress(packed.read_bytes()))
        return found
    return json.loads(plain.read_text()) if plain.exists() else None


def write(name: str, raw: Raw, folder: Path = RESULTS) -> None:
    text = json.dumps(raw, separators=(",", ":"), ensure_ascii=False) + "\n"
    plain, packed = folder / f"{name}.json", folder / f"{name}.json.gz"
    if len(text) > _LARGE:
        packed.write_bytes(gzip.compress(text.encode(), mtime=0))
        plain.unlink(missing_ok=True)
    else:
        plain.write_text(text)
        packed.unlink(missing_ok=True)


def data_of(raw: Raw) -> Any:
    """What `markdown` and `numbers` are given."""
    return {part: one["data"] for part, one in raw["parts"].items()} if "parts" in raw else raw["data"]


def make_table(benchmark: ModuleType, name: str, folder: Path = RESULTS) -> str:
    """Make the table, and the picture if there is one, from the raw results in `folder`."""
    raw = read(name, folder)
    if raw is None:
        raise SlipstreamError(f"{folder} has no raw results of {name}: run it without --table first")
    page = page_of(benchmark, raw)
    (folder / f"{name}.md").write_text(page)
    if hasattr(benchmark, "picture"):
        benchmark.picture(data_of(raw), folder / f"{name}.svg")
    return page


def page_of(benchmark: ModuleType, raw: Raw) -> str:
    """Title, tables, and where they come from."""
    title = (benchmark.__doc__ or "").splitlines()[0].partition(" (")[0].rstrip(".:")
    tables: str = benchmark.markdown(data_of(raw))
    return f"# {title}\n\n{tables.strip()}\n\n{provenance(raw)}\n"


def provenance(raw: Raw) -> str:
    """When, by which command, on what and in how long; parts that were measured alike are named together."""
    if "parts" not in raw:
        return f"Measured {_measured([raw['about']])}."
    alike: dict[str, list[str]] = {}
    for part, one in raw["parts"].items():
        same = {key: value for key, value in one["about"].items() if key not in ("seconds", "load")}
        alike.setdefault(json.dumps(same, sort_keys=True), []).append(part)
    phrases = [(parts, _measured([raw["parts"][part]["about"] for part in parts])) for parts in alike.values()]
    if len(phrases) == 1:
        return f"Measured {phrases[0][1]}."
    return "\n".join(["Measured", "", *(f"- {', '.join(parts)} {text}" for parts, text in phrases)])


def _measured(abouts: Sequence[Mapping[str, Any]]) -> str:
    """The provenance shared by parts that were measured alike. Raw results from before this runner lack some of it."""
    about = abouts[0]
    machine, versions = about.get("machine", {}), about.get("versions", {})
    phrases = [f"on {about['date']}"] if "date" in about else []
    if all("seconds" in one for one in abouts):
        phrases.append(f"in {_duration(sum(one['seconds'] for one in abouts))}")
    if "command" in about:
        phrases.append(f"by `{about['command']}`")
    if machine:
        phrases.append(f"on {machine.get('cpu', machine.get('architecture'))} ({machine['cores']} cores)")
    if versions.get("commit"):
        phrases.append(f"at {versions['commit']}")
    loads = [load[0] for one in abouts for load in one.get("load", ())]
    if loads:
        phrases.append(f"with a load of {min(loads):.1f} to {max(loads):.1f} before and after")
    return " ".join(phrases)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
