"""What each part of the method is worth: the same session with one part left out, in turn (7 hours).

All variants have the same wall clock. They run one after the other, seed by seed, each in its own process, or several
at a time on cores of their own (on 16 cores `--lanes 8` takes an hour). Compared is the sum of operators, without
the noise of whole models. Takes models x variants x seeds x budget / runs at a time.

On a CPU all start with random programs of MetaSchedule's sketches. Slipstream's own (`--own-sketches`) mostly start so
close to the best that a minute of search shows little but noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from benchmarks.ablation_picture import picture
from benchmarks.ablation_table import WHOLE, markdown, numbers
from benchmarks.lanes import in_lanes, lanes_argument
from benchmarks.runner import run
from slipstream.errors import SlipstreamError
from slipstream.machine.target import resolve_target

if TYPE_CHECKING:
    from benchmarks.ended_session import EndedSession

__all__ = ["arguments", "markdown", "measure", "numbers", "picture"]

QUICK = {"models": ["tiny_cnn"], "seeds": 1, "budget": 20.0, "variants": "everything,no guess"}
WITH_OURS = "with our sketches"
# Name -> options of `slipstream.tune`.
VARIANTS: dict[str, dict[str, Any]] = {
    WHOLE: {},
    WITH_OURS: {},
    "no relatives": {"settings": {"without": ["relatives"]}},
    "long first slots": {"settings": {"without": ["short_firsts"]}},
    "families by sequence": {"settings": {"families": "sequence"}},
    "families by sketch": {"settings": {"families": "sketch"}},
    "tiles kept only": {"settings": {"without": ["scale", "random"]}},
    "tiles scaled only": {"settings": {"without": ["keep", "random"]}},
    "tiles random only": {"settings": {"without": ["keep", "scale"]}},
    "posterior not updated": {"settings": {"without": ["posterior"]}},
    "no guess": {"settings": {"without": ["guess"]}},
    "guess not pre-trained": {"settings": {"without": ["pretraining"]}},
    "no potential": {"settings": {"without": ["potential"]}},
    "round robin for DynaTune": {"scheduler": "round_robin"},
    "gradient for DynaTune": {"scheduler": "gradient"},
    "the preset metaschedule": {"preset": "metaschedule"},
}


def from_scratch(name: str) -> dict[str, Any]:
    """The options of a variant without own sketches, unless the variant is about them."""
    chosen = VARIANTS[name]
    settings = {"without": [], **chosen.get("settings", {})}
    if name != WITH_OURS:
        settings["without"] = ["own_sketches", *settings["without"]]
    return {**chosen, "settings": settings}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=["resnet18", "mobilenet_v2", "transformer_encoder"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--target", default="cpu", help="as of 'slipstream tune'")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for each run")
    parser.add_argument("--own-sketches", action="store_true", help="on a CPU all variants have them, as users do")
    lanes_argument(parser)
    parser.add_argument(
        "--retimings", type=int, default=0, help="afterwards time what was held after equally many programs, in turns"
    )
    parser.add_argument("--variants", help="names with commas between [all that make a difference on the target]")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from benchmarks.ended_session import tune_apart

    on_cpu = options.target.startswith("cpu")
    scratch = on_cpu and not options.own_sketches
    where = [options.target] if options.target != "cpu" else []
    where += ["our sketches"] if on_cpu and options.own_sketches else []
    on = f" on {', '.join(where)}" if where else ""
    possible = [name for name in VARIANTS if scratch or name != WITH_OURS]
    names = options.variants.split(",") if options.variants else possible
    if WHOLE not in names:
        names = [WHOLE, *names]  # what the others are compared with
    if unknown := set(names) - set(VARIANTS):
        raise SlipstreamError(f"no variant is called {', '.join(unknown)}: there are {', '.join(VARIANTS)}")
    about = {"budget": options.budget, "lanes": options.lanes}
    results = {model: {**about, "runs": {name: {} for name in names}} for model in options.models}

    sessions: dict[str, dict[tuple[str, str], EndedSession]] = {model: {} for model in options.models}

    def tune(one: tuple[int, str, str], cores: Sequence[int]) -> dict[str, Any] | None:
        seed, model, name = one
        folder = options.work / f"{model}{on}".replace(", ", " ").replace(" ", "-") / f"{name.replace(' ', '-')}-{seed}"
        how = from_scratch(name) if scratch else VARIANTS[name]
        chosen = {"seed": seed, "budget": options.budget, "target": options.target, **how}
        try:
            ended = tune_apart(f"zoo:{model}", folder, cores=cores, **chosen)
        except SlipstreamError as error:
            print(error, flush=True)  # one failure must not discard the others
            return None
        print(f"{model}, {name}, seed {seed}: {ended.history.latency * 1e3:.2f} ms", flush=True)
        sessions[model][name, str(seed)] = ended
        return ended.to_json()

    wanted = list(product(range(options.seed, options.seed + options.seeds), options.models, names))
    for (seed, model, name), row in zip(wanted, in_lanes(options.lanes, tune, wanted), strict=True):
        if row is not None:
            results[model]["runs"][name][str(seed)] = row
            yield f"{model}{on}", results[model]
    for model in options.models if options.retimings else ():
        spaces = {"own_sketches": not scratch or WITH_OURS in names, "target": resolve_target(options.target)}
        for (name, seed), latencies in time_again(model, sessions[model], options, spaces).items():
            results[model]["runs"][name][seed]["held"] = latencies
        yield f"{model}{on}", results[model]


def time_again(
    model: str, sessions: Mapping[tuple[str, str], EndedSession], options: argparse.Namespace, spaces: Mapping[str, Any]
) -> dict[tuple[str, str], dict[str, float]]:
    """What each session's model took after as many programs as the session beside it had, by their number: from times
    of all these programs in turns, whatever the sessions believed."""
    from benchmarks.held_programs import HeldPrograms, held_after

    counts: dict[tuple[str, str], set[int]] = {}
    for (name, seed), ended in sessions.items():
        if (whole := sessions.get((WHOLE, seed))) is not None and name != WHOLE:
            least = min(len(ended.trials), len(whole.trials))
            for side in (name, WHOLE):
                counts.setdefault((side, seed), set()).add(least)
    held = HeldPrograms.of(model, {}, **spaces)
    numbers = {
        (one, count): {key: held.number(program) for key, program in held_after(sessions[one], count).items()}
        for one, some in counts.items()
        for count in some
    }
    seconds = held.time_again(options.retimings, options.seed)
    found: dict[tuple[str, str], dict[str, float]] = {}
    for (one, count), programs in numbers.items():
        times = {key: seconds[key][number] for key, number in programs.items()}
        # A program that fails now counts as the slowest.
        slowest = {key: max((s for s in seconds[key] if s is not None), default=0.0) for key in programs}
        latency = sum(held.known[key].weight * (times[key] or slowest[key]) for key in programs)
        found.setdefault(one, {})[str(count)] = latency
    return found


if __name__ == "__main__":
    run(__name__)
