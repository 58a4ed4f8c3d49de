"""The command that would tune the same model the same way again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from slipstream.plugins import is_object, names
from slipstream.session.settings import EFFORTS, PRESETS, Settings

_BY_NAME = ("scheduler", "search", "cost")


def reproduce(options: Mapping[str, Any], budget: Mapping[str, Any]) -> str:
    """A `slipstream tune` command, or Python where the command line cannot say it (or the model was no file)."""
    settings = Settings.from_json(options.get("settings", {}))
    chosen = _as_options(settings)
    source = str(options.get("source", "MODEL"))
    measurer = options.get("measurer", "local")
    if chosen is None or source == "memory" or is_object(measurer):
        return _as_python(settings, options, budget, source)
    words = ["slipstream", "tune", source, "-o", "DIR", *_budget(budget), *chosen]
    if options.get("target", "cpu") != "cpu":
        words += ["--target", str(options["target"])]
    if options.get("threads"):
        words += ["--threads", str(options["threads"])]
    rpc, key = options.get("rpc") or (None, None)
    words += ["--rpc", str(rpc), "--rpc-key", str(key)] if rpc else []
    words += ["--measurer", measurer] if measurer not in names("measurer") else []
    load = options.get("load") or {}
    shapes = load.get("shapes") or {}
    for name, shape in (pair for one in (shapes if isinstance(shapes, list) else [shapes]) for pair in one.items()):
        words += ["--shape", f"{name}={'x'.join(map(str, shape))}"]
    words += ["--pad"] if options.get("pad") else []
    for name, value in (load.get("constants") or {}).items():
        words += ["--constant", f"{name}={value}"]
    return shlex.join(words)


def _budget(budget: Mapping[str, Any]) -> list[str]:
    words = []
    if budget.get("seconds"):
        words += ["--budget", f"{budget['seconds']:g}s"]
    if budget.get("trials"):
        words += ["--trials", str(budget["trials"])]
    if budget.get("until_latency"):
        words += ["--until-latency", f"{budget['until_latency'] * 1e3:g}ms"]
    if budget.get("until_gain_below") is not None:
        words += ["--until-gain-below", f"{budget['until_gain_below']:.4%}".rstrip("%").rstrip("0").rstrip(".") + "%"]
    return words


def _as_options(settings: Settings) -> list[str] | None:
    """Options that lead to these very settings, as few as there are; None if no options do."""
    if any(is_object(getattr(settings, name)) for name in _BY_NAME):
        return None
    found: list[list[str]] = []
    for preset in (None, *PRESETS):
        for effort in EFFORTS:
            given = {"seed": settings.seed, "deterministic": settings.deterministic, **EFFORTS[effort]}
            made = Settings.from_json(given | dict(PRESETS[preset] if preset else {}))
            different = {f.name for f in fields(Settings) if getattr(made, f.name) != getattr(settings, f.name)}
            if different <= set(_BY_NAME):
                words = ["--preset", preset] if preset else []
                words += ["--effort", effort] if effort != "normal" else []
                for name in _BY_NAME:
                    words += [f"--{name}", getattr(settings, name)] if name in different else []
                words += ["--seed", str(settings.seed)] if settings.seed else []
                words += ["--deterministic"] if settings.deterministic else []
                found.append(words)
    return min(found, key=len, default=None)


def _as_python(settings: Settings, options: Mapping[str, Any], budget: Mapping[str, Any], source: str) -> str:
    default = Settings().to_json()
    changed = {n: v for n, v in settings.to_json().items() if v != default[n]}
    words = ["model" if source == "memory" else repr(source), '"DIR"']
    words += [f"{'budget' if n == 'seconds' else n}={v!r}" for n, v in budget.items() if v is not None]
    words += [f"target={options['target']!r}"] if options.get("target", "cpu") != "cpu" else []
    words += [f"threads={options['threads']!r}"] if options.get("threads") else []
    rpc, key = options.get("rpc") or (None, None)
    words += [f"rpc={rpc!r}", f"rpc_key={key!r}"] if rpc else []
    load = options.get("load") or {}
    words += [f"{name}={value!r}" for name, value in load.items() if value]
    words += ["pad=True"] if options.get("pad") else []
    words += [f"seed={changed.pop('seed')!r}"] if "seed" in changed else []
    stored = {name: changed.pop(name) for name in _BY_NAME if is_object(str(changed.get(name, "")))}
    stored |= {"measurer": options["measurer"]} if options.get("measurer", "local") not in names("measurer") else {}
    words += [f"{n}={_class(v)}(...)" if is_object(v) else f"{n}={v!r}" for n, v in stored.items()]
    words += [f"settings={changed!r}"] if changed else []
    return f"slipstream.tune({', '.join(words)})"


def _class(stored: str) -> str:
    """The class or function of an object that a session stored, without where it is from."""
    return stored.rpartition(":")[2].rpartition(".")[2]
