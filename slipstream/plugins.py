"""Schedulers, searches, cost models and measurers: by name, as an object, or from another package.

Another package adds a name through an entry point in one of `GROUPS`. It names a callable that takes one `Context` and
returns the object: a class whose constructor takes it, or a function. Nothing is imported before it is chosen.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from slipstream.diffusion.parts import Parts
from slipstream.errors import SlipstreamError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from slipstream.cost.types import CostModel
    from slipstream.machine.target import Target
    from slipstream.measure.types import Measurer
    from slipstream.schedulers.types import Scheduler
    from slipstream.search.types import Search

Kind = Literal["scheduler", "search", "cost", "measurer"]


class PluginError(SlipstreamError):
    """A scheduler, search, cost model or measurer that does not exist, cannot be made, or lacks a method."""


@dataclass(frozen=True)
class Context:
    """What a session gives to whatever it is made of; each takes what it needs and ignores the rest.

    `slot_trials` is the usual number of trials in a slot, `peak_flops` the most FLOP/s the target can do, `threads`
    how many threads may be used. `parts` are those of the method that the session uses. `population` and `generations`
    are those of evolutionary search, `evaluation` is how programs are timed. A session always sets `target`;
    `references` are the unscheduled operators by their keys, as TVM's JSON, and `rpc`, `rpc_key` and `fleet` what was
    given under these names. `model_weights` is how many bytes of weights a call of the model reads.
    """

    seed: int = 0
    slot_trials: int = 8
    peak_flops: float = 1e11
    threads: int = 1
    parts: Parts = Parts()  # noqa: RUF009  # frozen
    population: int = 128
    generations: int = 2
    target: Target | None = None
    references: Mapping[str, str] = field(default_factory=dict)
    rpc: str | None = None
    rpc_key: str | None = None
    fleet: str | None = None
    evaluation: str = "racing"
    model_weights: int = 0


if TYPE_CHECKING:
    AnyScheduler: TypeAlias = str | Scheduler | Callable[[Context], Scheduler]
    AnySearch: TypeAlias = str | Search | Callable[[Context], Search]
    AnyCostModel: TypeAlias = str | CostModel | Callable[[Context], CostModel]
    AnyMeasurer: TypeAlias = str | Measurer | Callable[[Context], Measurer]


@dataclass(frozen=True)
class _Protocol:
    """What a kind is called, the entry points' group, the protocol, what it needs, and ours: name -> (where, what)."""

    word: str
    group: str
    home: str
    methods: tuple[str, ...]
    ours: Mapping[str, tuple[str, str]]
    attributes: tuple[str, ...] = ()


_KINDS: Mapping[str, _Protocol] = {
    "scheduler": _Protocol(
        "scheduler",
        "slipstream.schedulers",
        "slipstream.schedulers.types.Scheduler",
        ("pick",),
        {
            "dynatune": ("schedulers.ucb:UCB", "highest upper confidence bound of the expected gain"),
            "ucb": ("schedulers.ucb:UCB", "the same as dynatune"),
            "epsilon_greedy": ("schedulers.epsilon_greedy:EpsilonGreedy", "highest expected gain, sometimes any"),
            "softmax": ("schedulers.softmax:Softmax", "at random, weighted by the expected gain"),
            "dynatune_paper": (
                "schedulers.dynatune_paper:DynatunePaper",
                "bound and belief as in DynaTune's paper",
            ),
            "gradient": ("schedulers.gradient:Gradient", "Ansor's: recent and extrapolated fall of the latency"),
            "dynamic_round_robin": ("schedulers.dynamic_round_robin:DynamicRoundRobin", "unfinished ones in turn"),
            "dynamic_random": ("schedulers.dynamic_random:DynamicRandom", "an unfinished one at random"),
            "linear": ("schedulers.linear:Linear", "a plan in proportion to FLOPs"),
            "round_robin": ("schedulers.round_robin:RoundRobin", "a plan in turn"),
            "random": ("schedulers.random:Random", "a plan at random"),
            "sequential": ("schedulers.sequential:Sequential", "one operator until it is finished, then the next"),
        },
    ),
    "search": _Protocol(
        "search",
        "slipstream.searches",
        "slipstream.search.types.Search",
        ("propose",),
        {
            "diffusion": ("search:make_diffusion", "from what similar operators and earlier trials have shown"),
            "evolutionary": ("search:make_evolutionary", "TVM's evolutionary search, ranked by the cost model"),
            "chameleon": ("search.chameleon:Chameleon", "Chameleon's: learned walks, of which centroids are measured"),
            "random": ("search.random:Random", "at random"),
        },
        ("uses_score",),
    ),
    "cost": _Protocol(
        "cost model",
        "slipstream.cost_models",
        "slipstream.cost.types.CostModel",
        ("score", "learn", "state", "restore"),
        {
            "incremental": ("cost.incremental:Incremental", "gradient-boosted trees, extended after each slot"),
            "metaschedule": ("cost.metaschedule:MetaSchedule", "TVM's gradient-boosted trees, refitted each time"),
            "random": ("cost.random:Random", "a random figure for every program"),
        },
    ),
    "measurer": _Protocol(
        "measurer",
        "slipstream.measurers",
        "slipstream.measure.types.Measurer",
        ("measure", "close"),
        {
            "local": ("measure.choose:make_measurer", "this machine's CPU or GPU"),
            "rpc": ("measure.choose:make_measurer", "devices behind an RPC tracker (--rpc, --rpc-key)"),
            "fleet": ("measure.choose:make_measurer", "the nodes of a Ray cluster (--fleet)"),
        },
    ),
}
KINDS: tuple[Kind, ...] = ("scheduler", "search", "cost", "measurer")
GROUPS: Mapping[str, str] = MappingProxyType({kind: protocol.group for kind, protocol in _KINDS.items()})


@dataclass(frozen=True)
class Offer:
    """A name that can be chosen: what it is, and the package it comes from (none if it is ours)."""

    name: str
    about: str
    package: str = ""


@dataclass(frozen=True)
class Plugin:
    """One that was chosen: `name` is what a session stores, `factory` makes it."""

    kind: Kind
    name: str
    factory: Callable[..., Any] = field(repr=False)
    package: str | None = None

    @property
    def is_ours(self) -> bool:
        return self.package == ""

    def make(self, context: Context, **options: Any) -> Any:
        """The object itself. `options` are further arguments of ours; others never see them."""
        if self.is_ours:
            return self.factory(context, options)
        try:
            made = self.factory(context)
        except SlipstreamError:
            raise
        except Exception as error:
            raise PluginError(f"{self} could not be made ({_brief(error)}): {_remedy(self.package)}") from error
        _require(self.kind, made, f"what {self} makes")
        return made

    def __str__(self) -> str:
        origin = f" of the package {self.package}" if self.package else ""
        return f"the {_KINDS[self.kind].word} {self.name!r}{origin}"


@dataclass(frozen=True)
class Plugins:
    """All that a session is made of."""

    scheduler: Plugin
    search: Plugin
    cost: Plugin
    measurer: Plugin


def names(kind: Kind) -> tuple[str, ...]:
    """The names of ours."""
    return tuple(_KINDS[kind].ours)


def offers(kind: Kind) -> Iterator[Offer]:
    """All names that can be chosen, ours first."""
    ours = _KINDS[kind].ours
    yield from (Offer(name, about) for name, (_, about) in ours.items())
    for name, points in sorted(_entry_points(kind).items()):
        for point in sorted(points, key=_package):
            taken = ", not available: the name is taken" if name in ours or len(points) > 1 else ""
            yield Offer(name, f"from the package {_package(point)}{taken}", _package(point))


def choose(kind: Kind, choice: Any) -> Plugin:
    """What `choice` means: a name, an object with the methods of its protocol, or a callable that takes a Context."""
    return _by_name(kind, choice) if isinstance(choice, str) else _given(kind, choice)


def make(kind: Kind, choice: Any, context: Context, **options: Any) -> Any:
    """`choose` and `Plugin.make` in one."""
    return choose(kind, choice).make(context, **options)


def check_name(kind: Kind, name: object) -> None:
    """Refuse a name that cannot be chosen; the class of an object, which a session stores, may stand in its place."""
    if not isinstance(name, str):
        raise PluginError(f"settings take a {_KINDS[kind].word} by name: pass the object as {kind}=...")
    if not is_object(name):
        choose(kind, name)


def check_options(kind: Kind, name: str, options: Mapping[str, Any]) -> None:
    """Refuse options that our `name` does not have; others may do with them what they like."""
    if options and _key(name) in _KINDS[kind].ours:
        _arguments(kind, _key(name), Context(), options)


def stored_name(choice: Any) -> str | None:
    """What a session stores of a choice: the name, or `module:Class` of an object. None if nothing was chosen."""
    if choice is None:
        return None
    return _key(choice) if isinstance(choice, str) else _qualified(choice)


def is_object(stored: str) -> bool:
    """Whether a session stored the class of an object, which names nothing that could be chosen again."""
    return ":" in stored


def choose_again(kind: Kind, stored: str, given: Any, directory: object) -> Plugin:
    """The choice of a session that goes on: what it stored, or the same object `given` once more."""
    word = _KINDS[kind].word
    if given is None:
        if is_object(stored):
            raise PluginError(
                f"this session's {word} was a Python object, {stored}: go on from Python, "
                f"slipstream.resume({str(directory)!r}, {kind}=...)"
            )
        return choose(kind, stored)
    plugin = choose(kind, given)
    if kind == "measurer":
        return plugin  # the same hardware may be reached another way
    # A class of a script is in `__main__` one day and in the script's module the next.
    if plugin.name.rpartition(":")[2] != stored.rpartition(":")[2]:
        raise PluginError(
            f"this session's {word} is {stored!r}, not {plugin.name!r}: "
            + ("pass one of that class" if is_object(stored) else f"leave {kind}= out")
            + ", or start a new session"
        )
    return plugin


def _by_name(kind: Kind, name: str) -> Plugin:
    key, protocol = _key(name), _KINDS[kind]
    if key in protocol.ours:
        return Plugin(kind, key, partial(_construct, kind, key), "")
    points = _entry_points(kind).get(key, [])
    if not points:
        raise PluginError(f"there is no {protocol.word} {name!r}; choose one of {_listed(kind)}")
    if len(points) > 1:
        packages = " and ".join(sorted(map(_package, points)))
        raise PluginError(f"the {protocol.word} {name!r} is in the packages {packages}: uninstall all but one of them")
    package = _package(points[0])
    try:
        factory = points[0].load()
    except Exception as error:
        raise PluginError(
            f"the {protocol.word} {name!r} of the package {package} cannot be imported ({_brief(error)}): "
            f"{_remedy(package)}"
        ) from error
    plugin = Plugin(kind, key, factory, package)
    _require_callable(kind, factory, str(plugin))
    return plugin


def _given(kind: Kind, choice: Any) -> Plugin:
    name = _qualified(choice)
    if not isinstance(choice, type) and (not callable(choice) or not _missing(kind, choice)):
        _require(kind, choice, name)
        return Plugin(kind, name, lambda context: choice)
    _require_callable(kind, choice, name)
    return Plugin(kind, name, choice)


def _require_callable(kind: Kind, factory: Any, what: str) -> None:
    """Refuse what cannot be called with one Context, and a class without the methods of its protocol."""
    if isinstance(factory, type):
        _require(kind, factory, what, methods_only=True)
    try:
        inspect.signature(factory).bind(Context())
    except TypeError as error:
        instead = f"pass an object, {factory.__name__}(...)" if isinstance(factory, type) else "see Context"
        raise PluginError(f"{what} cannot be called with one slipstream.plugins.Context ({error}): {instead}") from None
    except ValueError:
        return  # native code may have no signature


def _require(kind: Kind, candidate: Any, what: str, *, methods_only: bool = False) -> None:
    if missing := _missing(kind, candidate, methods_only=methods_only):
        protocol = _KINDS[kind]
        raise PluginError(f"{what} is no {protocol.word}: it has no {', '.join(missing)}; see {protocol.home}")


def _missing(kind: Kind, candidate: Any, *, methods_only: bool = False) -> list[str]:
    protocol = _KINDS[kind]
    missing = [f"{name}()" for name in protocol.methods if not callable(getattr(candidate, name, None))]
    return missing + [name for name in protocol.attributes if not methods_only and not hasattr(candidate, name)]


def _construct(kind: Kind, key: str, context: Context, options: Mapping[str, Any]) -> Any:
    factory, arguments = _arguments(kind, key, context, options)
    return factory(**arguments)


def _arguments(kind: Kind, key: str, context: Context, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """One of ours and what to call it with: the fields of the context that its parameters name, and the options."""
    module, _, name = _KINDS[kind].ours[key][0].partition(":")
    factory = getattr(import_module(f"slipstream.{module}"), name)
    takes = inspect.signature(factory).parameters
    setting = {f.name: getattr(context, f.name) for f in fields(Context) if f.name in takes}
    own = [parameter for parameter in takes if parameter not in setting]
    if unknown := [option for option in options if option not in own]:
        has = f"its options are {', '.join(own)}" if own else "it has none"
        raise PluginError(f"the {_KINDS[kind].word} {key!r} has no option {unknown[0]!r}; {has}")
    return factory, setting | dict(options)


def _entry_points(kind: Kind) -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUPS[kind]):
        found.setdefault(_key(point.name), []).append(point)
    return found


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module


def _listed(kind: Kind) -> str:
    """All names in one line, those of other packages after their package's name."""
    foreign: dict[str, list[str]] = {}
    for offer in offers(kind):
        if offer.package and offer.name not in _KINDS[kind].ours:
            foreign.setdefault(offer.package, []).append(offer.name)
    return "; ".join([", ".join(names(kind)), *(f"from {package}: {', '.join(n)}" for package, n in foreign.items())])


def _key(name: str) -> str:
    """Hyphens are as good as underscores, capitals as small letters; `module:Class` stays as it is."""
    return name if is_object(name) else name.strip().lower().replace("-", "_")


def _qualified(choice: Any) -> str:
    named = choice if hasattr(choice, "__qualname__") else type(choice)
    return f"{named.__module__}:{named.__qualname__}"


def _brief(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _remedy(package: str | None) -> str:
    return f"repair the package {package} or uninstall it" if package else "repair it"
