"""The command that would tune the same model the same way again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from slipstream.plugins import is_object, names
from slipstream.session.model_names import default_name
from slipstream.session.settings import EFFORTS, PRESETS, Settings

_BY_NAME = ("scheduler", "search", "cost", "evaluation")
_OF_THE_MACHINE = {"in_flight", "searches"}  # chosen by its cores


def reproduce(options: Mapping[str, Any], budget: Mapping[str, Any]) -> str:
    """A `slipstream tune` command, or Python where the command line cannot say it (or the model was no file)."""
    settings = Settings.from_json(options.get("settings", {}))
    chosen = _as_options(settings)
    models = [{"source": "MODEL", **row} for row in options.get("models", [options])]
    measurer = options.get("measurer", "local")
    alone = len(options.get("models", ())) == 1  # a list of one has its model's name, an argument of one has not
    if chosen is None or alone or any(row["source"] == "memory" for row in models) or is_object(measurer):
        return _as_python(settings, options, budget, models)
    words = ["slipstream", "tune", *map(_word, models), "-o", "DIR", *_budget(budget), *chosen]
    if options.get("target", "cpu") != "cpu":
        words += ["--target", str(options["target"])]
    if options.get("threads"):
        words += ["--threads", str(options["threads"])]
    rpc, key = options.get("rpc") or (None, None)
    words += ["--rpc", str(rpc), "--rpc-key", str(key)] if rpc else []
    words += ["--measurer", measurer] if measurer not in names("measurer") else []
    words += [word for row in models for word in _of_model(row)]
    words += ["--pad"] if any(row.get("pad") for row in models) else []
    return shlex.join(words)


def _word(row: Mapping[str, Any]) -> str:
    """A model on the command line, with its name if that is not the one it has anyway."""
    name, source = row.get("name", ""), str(row["source"])
    return f"{name}={source}" if name and name != default_name(source) else source


def _of_model(row: Mapping[str, Any]) -> list[str]:
    """The options of a model; those of one of several say of which."""
    load, words = row.get("load") or {}, list[str]()
    shapes, of = load.get("shapes") or {}, f"{row['name']}:" if row.get("name") else ""
    for name, shape in (pair for one in (shapes if isinstance(shapes, list) else [shapes]) for pair in one.items()):
        words += ["--shape", f"{of}{name}={'x'.join(map(str, shape))}"]
    for name, value in (load.get("constants") or {}).items():
        words += ["--constant", f"{of}{name}={value}"]
    return words + (["--weight", f"{row['name']}={row['weight']}"] if row.get("weight", 1) > 1 else [])


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
            if different - _OF_THE_MACHINE <= set(_BY_NAME):
                words = ["--preset", preset] if preset else []
                words += ["--effort", effort] if effort != "normal" else []
                for name in _BY_NAME:
                    words += [f"--{name}", getattr(settings, name)] if name in different else []
                words += ["--seed", str(settings.seed)] if settings.seed else []
                words += ["--deterministic"] if settings.deterministic else []
                found.append(words)
    return min(found, key=len, default=None)


def _as_python(
    settings: Settings, options: Mapping[str, Any], budget: Mapping[str, Any], models: list[dict[str, Any]]
) -> str:
    default = Settings().to_json()
    changed = {n: v for n, v in settings.to_json().items() if v != default[n]}
    sources = ["model" if row["source"] == "memory" else repr(str(row["source"])) for row in models]
    several = "models" in options
    named = ", ".join(f"{row.get('name')!r}: {source}" for row, source in zip(models, sources, strict=True))
    words = [f"{{{named}}}" if several else sources[0], '"DIR"']
    words += [f"{'budget' if n == 'seconds' else n}={v!r}" for n, v in budget.items() if v is not None]
    words += [f"target={options['target']!r}"] if options.get("target", "cpu") != "cpu" else []
    words += [f"threads={options['threads']!r}"] if options.get("threads") else []
    rpc, key = options.get("rpc") or (None, None)
    words += [f"rpc={rpc!r}", f"rpc_key={key!r}"] if rpc else []
    for name in ("shapes", "constants"):
        given = {row.get("name"): value for row in models if (value := (row.get("load") or {}).get(name))}
        words += [f"{name}={given if several else next(iter(given.values()))!r}"] if given else []
    counted = {row["name"]: row["weight"] for row in models if row.get("weight", 1) > 1}
    words += [f"weights={counted!r}"] if counted else []
    words += ["pad=True"] if any(row.get("pad") for row in models) else []
    words += [f"seed={changed.pop('seed')!r}"] if "seed" in changed else []
    stored = {name: changed.pop(name) for name in _BY_NAME if is_object(str(changed.get(name, "")))}
    stored |= {"measurer": options["measurer"]} if options.get("measurer", "local") not in names("measurer") else {}
    words += [f"{n}={_class(v)}(...)" if is_object(v) else f"{n}={v!r}" for n, v in stored.items()]
    words += [f"settings={changed!r}"] if changed else []
    return f"slipstream.tune({', '.join(words)})"


def _class(stored: str) -> str:
    """The class or function of an object that a session stored, without where it is from."""
    return stored.rpartition(":")[2].rpartition(".")[2]
