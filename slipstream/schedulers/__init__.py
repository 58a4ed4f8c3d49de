"""Policies for giving slots to operators, by name. One small file each; the contract is in `types.py`."""

from __future__ import annotations

import inspect
from typing import Any, cast

from slipstream.schedulers.dynamic_random import DynamicRandom
from slipstream.schedulers.dynamic_round_robin import DynamicRoundRobin
from slipstream.schedulers.dynatune_paper import DynatunePaper
from slipstream.schedulers.epsilon_greedy import EpsilonGreedy
from slipstream.schedulers.gradient import Gradient
from slipstream.schedulers.linear import Linear
from slipstream.schedulers.oracle import Oracle
from slipstream.schedulers.random import Random
from slipstream.schedulers.round_robin import RoundRobin
from slipstream.schedulers.sequential import Sequential
from slipstream.schedulers.softmax import Softmax
from slipstream.schedulers.types import OperatorState, Scheduler, SchedulerError
from slipstream.schedulers.ucb import UCB

__all__ = ["NAMES", "OperatorState", "Scheduler", "SchedulerError", "make"]

_SCHEDULERS: dict[str, type] = {
    "ucb": UCB,
    "epsilon_greedy": EpsilonGreedy,
    "softmax": Softmax,
    "dynatune_paper": DynatunePaper,
    "gradient": Gradient,
    "dynamic_round_robin": DynamicRoundRobin,
    "dynamic_random": DynamicRandom,
    "linear": Linear,
    "round_robin": RoundRobin,
    "random": Random,
    "sequential": Sequential,
    "oracle": Oracle,
}
_ALIASES = {"dynatune": "ucb"}

# The oracle works on recorded curves only: `make` accepts it, but it is not in `NAMES`.
NAMES = tuple(name for name in _SCHEDULERS if name != "oracle")


def make(name: str, *, seed: int, slot_trials: int, peak_flops: float, **options: Any) -> Scheduler:
    """The scheduler called `name` (see `NAMES`; "dynatune" means "ucb"; hyphens may replace underscores).

    `slot_trials` is how many trials a slot usually has, `peak_flops` the most FLOP/s the target can do; policies
    that do not need them ignore them. `options` go to the policy's constructor.
    """
    key = name.lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    if key not in _SCHEDULERS:
        raise SchedulerError(f"there is no scheduler {name!r}; choose one of {', '.join(NAMES)}")
    kind = _SCHEDULERS[key]
    setting = {"seed": seed, "slot_trials": slot_trials, "peak_flops": peak_flops}
    # The options of a policy are the parameters of its constructor.
    takes = inspect.signature(kind).parameters
    own = [parameter for parameter in takes if parameter not in setting]
    needed = [option for option in own if takes[option].default is inspect.Parameter.empty]
    if missing := [option for option in needed if option not in options]:
        raise SchedulerError(f"the scheduler {key!r} needs the option {missing[0]!r}")
    if unknown := [option for option in options if option not in own]:
        known = f"its options are {', '.join(own)}" if own else "it has none"
        raise SchedulerError(f"the scheduler {key!r} has no option {unknown[0]!r}; {known}")
    arguments = {parameter: value for parameter, value in setting.items() if parameter in takes}
    return cast(Scheduler, kind(**arguments, **options))
