"""The tables and figures of `benchmarks.serving`, from its raw results alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from statistics import geometric_mean, median
from typing import Any

from benchmarks.spread import table, with_range

OURS = "slipstream"
_HEADINGS = {OURS: "Slipstream", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch": "PyTorch"}
_MEGA = 1e6

Data = Mapping[str, Mapping[str, Any]]


def markdown(data: Data) -> str:
    lines = [*_one_caller(data)]
    sections = {
        "Several callers": _callers(data),
        "Processor time": _processor(data),
        "Process starts": _starts(data),
        "Loading": _loading(data),
        "Soak": _soak(data),
        "Left out": _skipped(data),
    }
    for heading, section in sections.items():
        if section:
            lines += ["", f"### {heading}", "", *section]
    return "\n".join(lines) + "\n"


def numbers(data: Data) -> dict[str, str]:
    """Ratios of medians to ours and their geometric mean over (un)tuned models, by side, cores, pause and callers."""
    grouped: dict[str, list[float]] = {}
    for part, row in _rows(data):
        words = f"{_where(part)}, {pattern_text(row['pattern'])}"
        words += ", untuned" if part["model"].endswith(" untuned") else ""
        for ratio in row["ratios"]:
            grouped.setdefault(f"{ratio['against']}, {words}", []).append(ratio["median"])
    found = {}
    for key, ratios in grouped.items():
        found[f"models {key}"] = str(len(ratios))
        found[f"mean {key}"] = f"{geometric_mean(ratios):.2f}"
        found |= {f"least {key}": f"{min(ratios):.2f}", f"most {key}": f"{max(ratios):.2f}"}
    return found | _callers_numbers(data)


def _callers_numbers(data: Data) -> dict[str, str]:
    """Several callers beside the best of the others: requests a second and slowest hundredth, by cores and pause."""
    grouped: dict[str, list[tuple[_Spread, _Spread]]] = {}
    for part, row in _rows(data):
        if row["pattern"]["callers"] > 1 and len(row["timings"]) > 1:
            key = f"{_where(part)}, {_pause(row['pattern'])}"
            grouped.setdefault(key, []).append(_beside_the_best(row))
    found = {}
    for key, pairs in grouped.items():
        requests, slowest = zip(*pairs, strict=True)
        found[f"rows of callers, {key}"] = str(len(pairs))
        found[f"fewer requests, {key}"] = str(sum(ratio[0] < 1 for ratio in requests))
        found[f"surely fewer requests, {key}"] = str(sum(ratio[-1] < 1 for ratio in requests))
        found[f"least requests, {key}"] = f"{min(ratio[0] for ratio in requests):.2f}"
        found[f"most requests, {key}"] = f"{max(ratio[0] for ratio in requests):.2f}"
        found[f"longer p99, {key}"] = str(sum(ratio[0] > 1 for ratio in slowest))
        found[f"surely longer p99, {key}"] = str(sum(ratio[-2] > 1 for ratio in slowest))
        found[f"surely shorter p99, {key}"] = str(sum(ratio[-1] < 1 for ratio in slowest))
        found[f"longest p99, {key}"] = f"{max(ratio[0] for ratio in slowest):.2f}"
    return found


_Spread = tuple[float, float, float]
"""A ratio and its 95 % interval, which is (0, infinity) where none was recorded."""


def _beside_the_best(row: Mapping[str, Any]) -> tuple[_Spread, _Spread]:
    """Ours to the best of the others: requests a second, and the slowest hundredth."""
    timings = _timings(row)
    ours = timings.pop(OURS)
    intervals = {ratio["against"]: ratio for ratio in row["ratios"]}
    most = max(timings, key=lambda name: timings[name]["requests_per_second"])
    quickest = min(timings, key=lambda name: timings[name]["p99"])

    def spread(value: float, other: str, what: str) -> _Spread:
        interval = intervals[other].get(what)
        return (value, interval["low"], interval["high"]) if interval else (value, 0.0, inf)

    requests = ours["requests_per_second"] / timings[most]["requests_per_second"]
    return spread(requests, most, "requests"), spread(ours["p99"] / timings[quickest]["p99"], quickest, "p99")


def _with_interval(spread: _Spread) -> str:
    value, low, high = spread
    return f"{value:.2f} ({low:.2f} - {high:.2f})" if high < inf else f"{value:.2f}"


def _where(part: Mapping[str, Any]) -> str:
    """The cores, and the version if it is another one than that of the table."""
    cores = f"{len(part['cores'])} cores"
    return f"{cores} at {part['version']}" if "version" in part else cores


def pattern_text(pattern: Mapping[str, Any]) -> str:
    callers = pattern["callers"]
    return f"{_pause(pattern)}, {callers} caller{'s' if callers > 1 else ''}"


def _pause(pattern: Mapping[str, Any]) -> str:
    return f"{pattern['pause'] * 1e3:g} ms" if pattern["pause"] else "back to back"


def _rows(data: Data) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for part in data.values():
        for row in part.get("rows", ()):
            yield part, row


def _sides(data: Data) -> list[str]:
    """In the order of the headings; ours first."""
    present = {timing["name"] for _, row in _rows(data) for timing in row["timings"]}
    return [*(side for side in _HEADINGS if side in present), *sorted(present - set(_HEADINGS))]


def _heading(side: str) -> str:
    return _HEADINGS.get(side, side)


def _timings(row: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {timing["name"]: timing for timing in row["timings"]}


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    return table(columns, rows) if rows else []


def _one_caller(data: Data) -> list[str]:
    """Our median after each pause, and how many times as fast we are as each of the others."""
    others = [side for side in _sides(data) if side != OURS]
    pauses = sorted({row["pattern"]["pause"] for _, row in _rows(data) if row["pattern"]["callers"] == 1})
    if not pauses:
        return ["Nothing was measured with one caller."]
    titles = {pause: _pause({"pause": pause}) for pause in pauses}
    columns = ["model", "cores", *(f"ms, {title}" for title in titles.values())]
    columns += [f"{_heading(side)}, {title}" for side in others for title in titles.values()]
    rows = []
    for part in data.values():
        alone = {row["pattern"]["pause"]: row for row in part.get("rows", ()) if row["pattern"]["callers"] == 1}
        if not alone:
            continue
        cells = [_ms(_timings(alone[pause])[OURS]["median"]) if pause in alone else "" for pause in pauses]
        for side in others:
            cells += [_ratio(alone[pause], side) if pause in alone else "" for pause in pauses]
        rows.append([part["model"], len(part["cores"]), *cells])
    text = (
        "One caller: the median in ms, and how many times as fast as each of the others, at its fastest settings, the"
    )
    return [text, "model is (95 % interval). Above 1, Slipstream is faster.", "", *_table(columns, rows)]


def _callers(data: Data) -> list[str]:
    sides = _sides(data)
    columns = ["model", "cores", "pause", "callers", "requests, to the best of the others", "p99, to the best"]
    columns += [f"{_heading(side)}: {what}" for side in sides for what in ("a second", "p50 ms", "p99 ms")]
    rows = []
    for part, row in _rows(data):
        if row["pattern"]["callers"] == 1:
            continue
        timings, cells = _timings(row), []
        for side in sides:
            one = timings.get(side)
            cells += [f"{one['requests_per_second']:.1f}", _ms(one["median"]), _ms(one["p99"])] if one else ["", "", ""]
        beside = [_with_interval(spread) for spread in _beside_the_best(row)] if len(timings) > 1 else ["", ""]
        where = [part["model"], len(part["cores"]), _pause(row["pattern"]), row["pattern"]["callers"]]
        rows.append([*where, *beside, *cells])
    text = "Ours to the best of the others: requests a second, and the time of the slowest hundredth (95 % interval)."
    return [text, "", *_table(columns, rows)] if rows else []


def _processor(data: Data) -> list[str]:
    """One caller: processor time per request, p99, and the settings that were fastest."""
    sides = _sides(data)
    columns = ["model", "cores", "pause"]
    columns += [f"{_heading(side)}: {what}" for side in sides for what in ("CPU ms a request", "p99 ms")]
    rows = []
    for part, row in _rows(data):
        if row["pattern"]["callers"] > 1:
            continue
        timings, cells = _timings(row), []
        for side in sides:
            one = timings.get(side)
            setting = f" ({one['setting']})" if one and one["setting"] else ""
            cells += (
                [_ms(one["processor_seconds"]) + setting, f"{_ms(one['p99'])} of {one['runs']}"] if one else ["", ""]
            )
        rows.append([part["model"], len(part["cores"]), _pause(row["pattern"]), *cells])
    return _table(columns, rows)


def _starts(data: Data) -> list[str]:
    """The spread over process starts, ours and another's in the same minutes: part of it is the machine's."""
    rows = []
    for part in data.values():
        for side in part["starts"][0]["median"] if part.get("starts") else ():
            cells = []
            for what in ("median", "paused"):
                medians = [start[what][side] * 1e3 for start in part["starts"] if side in start[what]]
                cells += [with_range(medians), f"{max(medians) / min(medians):.2f}"]
            rows.append([part["model"], len(part["cores"]), _heading(side), len(part["starts"]), *cells])
    columns = ["model", "cores", "", "starts", "ms, back to back", "slowest / fastest", "ms, 20 ms"]
    return _table([*columns, "slowest / fastest"], rows)


def _loading(data: Data) -> list[str]:
    """Once for each model, on the most cores."""
    widest: dict[str, Mapping[str, Any]] = {}
    for part in data.values():
        if part.get("facts") and len(part["cores"]) >= len(widest.get(part["model"], {"cores": ()})["cores"]):
            widest[part["model"]] = part
    rows = []
    for model, part in widest.items():
        for side, facts in part["facts"].items():
            sizes = [facts[key] / _MEGA for key in ("memory_bytes", "model_bytes", "runtime_bytes")]
            seconds = [f"{facts[key]:.2f}" for key in ("import_seconds", "load_seconds")]
            rows.append([model, _heading(side), *seconds, *(f"{size:.1f}" for size in sizes), facts["process_threads"]])
    columns = ["model", "", "import, s", "load and first call, s", "memory, MB", "model on disk, MB"]
    return _table([*columns, "runtime on disk, MB", "threads"], rows)


def _soak(data: Data) -> list[str]:
    rows = []
    for part in data.values():
        if "soak" not in part:
            continue
        found = part["soak"]
        if "failed" in found:
            rows.append([part["model"], found["failed"], *[""] * 8])
            continue
        early, late = memory_growth(found["samples"])
        loads = found["loads"]
        rows.append(
            [
                part["model"],
                f"{found['seconds']:.0f}",
                found["requests"],
                found["wrong"],
                len(found["failures"]),
                f"{early / _MEGA:.1f} to {late / _MEGA:.1f}",
                max(sample["threads"] for sample in found["samples"]),
                found["threads_left"],
                f"{loads['count']}: {loads['memory_bytes'][0] / _MEGA:.1f} to {loads['memory_bytes'][1] / _MEGA:.1f}",
                loads["threads_left"],
            ]
        )
    columns = ["model", "s", "requests", "wrong", "failed", "memory, MB", "most threads", "threads left"]
    return _table([*columns, "loads: memory, MB", "threads left"], rows)


def memory_growth(samples: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Bytes in the second and in the last quarter of the time: what grows without end shows between these."""
    values = [sample["memory_bytes"] for sample in samples]
    quarter = max(1, len(values) // 4)
    return median(values[quarter : 2 * quarter] or values[:1]), median(values[-quarter:])


def _skipped(data: Data) -> list[str]:
    reasons = {(part["model"], side): said for part in data.values() for side, said in part.get("skipped", {}).items()}
    return _table(
        ["model", "side", "reason"], [[model, _heading(side), said] for (model, side), said in reasons.items()]
    )


def _ratio(row: Mapping[str, Any], side: str) -> str:
    for ratio in row["ratios"]:
        if ratio["against"] == side:
            return f"{ratio['median']:.2f} ({ratio['low']:.2f} - {ratio['high']:.2f})"
    return ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds >= 1e-3 else f"{seconds * 1e3:.3f}"
