"""Each policy does what its formula says."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from slipstream.plugins import Context, make
from slipstream.schedulers import OperatorState
from slipstream.schedulers.finish import is_finished
from slipstream.schedulers.gains import slot_seconds
from slipstream.schedulers.gradient import Gradient
from slipstream.schedulers.potential import idle_slots, potential, speeds_of
from slipstream.schedulers.replay import RecordedCurve, replay
from slipstream.schedulers.ucb import UCB

SETTING = {"seed": 0, "slot_trials": 4, "peak_flops": 1e11}


def _operator(key: str, history=(1e-3,), **fields) -> OperatorState:
    trials = len(history) - 1
    given = {"weight": 1, "flops": 10**7, "slot_ends": tuple(range(4, trials + 1, 4)), **fields}
    return OperatorState(key, history=list(history), **given)


def _serve(name: str, operators: list[OperatorState], slots: int, **options) -> list[str]:
    """Picks when a slot changes nothing but the operator's count of slots."""
    scheduler = make("scheduler", name, Context(**SETTING), **options)
    states = {operator.key: operator for operator in operators}
    picks = []
    for slot in range(slots):
        key = scheduler.pick(list(states.values()), slot)
        picks.append(key)
        states[key] = replace(states[key], slot_ends=(*states[key].slot_ends, 0))
    return picks


def test_round_robin_keeps_its_plan_and_the_dynamic_one_balances():
    operators = [_operator("a"), _operator("b", finished=True), _operator("c")]
    assert _serve("round_robin", operators, 6) == ["a", "c", "c", "a", "c", "c"]
    assert _serve("dynamic_round_robin", operators, 4) == ["a", "c", "a", "c"]


def test_random_policies_give_the_slots_of_the_finished_to_the_next_or_to_all():
    operators = [_operator("a"), _operator("b", finished=True), _operator("c")]
    static, dynamic = (Counter(_serve(name, operators, 600)) for name in ("random", "dynamic_random"))
    assert static["c"] == pytest.approx(400, abs=50)
    assert dynamic["c"] == pytest.approx(300, abs=50)


def test_linear_follows_flops():
    operators = [_operator("a", flops=600), _operator("b", flops=100, weight=3), _operator("c", flops=100)]
    assert Counter(_serve("linear", operators, 100)) == {"a": 60, "b": 30, "c": 10}


def test_sequential_stays_until_an_operator_is_finished():
    operators = [_operator("a", finished=True), _operator("b"), _operator("c")]
    assert _serve("sequential", operators, 3) == ["b", "b", "b"]


def test_operators_without_a_measurement_come_first():
    operators = [_operator("known", [1.0] * 5), _operator("cold", [math.inf] * 5, weight=1)]
    for name in ("ucb", "epsilon_greedy", "softmax", "gradient", "dynamic_random", "dynamic_round_robin"):
        assert make("scheduler", name, Context(**SETTING)).pick(operators, 3) == "cold"


def test_the_gradient_is_ansors():
    history = [8.0] * 4 + [6.0] * 4 + [5.0] * 4 + [4.0] * 4 + [2.0]
    operator = _operator("a", history, weight=3, flops=100, similar=("b",), slot_ends=(4, 8, 12, 16))
    past = (6.0 - 2.0) / 3
    assert Gradient().fall(operator, {}) == pytest.approx(3 * (0.2 * past + 0.8 * 2.0 / 4))
    # A relative at 400 FLOP/s: twice 100 / 400 should be reachable.
    assert Gradient().fall(operator, {"a": 50, "b": 400}) == pytest.approx(3 * (0.2 * past + 0.8 * (2.0 - 0.5)))
    # No window yet: only the future counts.
    short = _operator("a", history[:9], slot_ends=(4, 8))
    assert Gradient().fall(short, {}) == pytest.approx(0.8 * 5.0 / 2)


def test_the_bound_is_gain_plus_doubt_in_shares_of_the_latency():
    flat = _operator("flat", [1e-3] * 41, weight=2)
    other = _operator("other", [1e-3] * 9, weight=6)
    ucb = UCB(**SETTING, c=0.5)
    gains = dict(zip(("flat", "other"), ucb.gains.gains([flat, other]), strict=True))
    bounds = ucb.bounds([flat, other], [flat, other], slot=11)
    assert bounds["flat"] == pytest.approx(gains["flat"] / 8e-3 + 0.25 * math.sqrt(0.5 * math.log(12)) / 11)
    assert bounds["other"] == pytest.approx(gains["other"] / 8e-3 + 0.75 * math.sqrt(0.5 * math.log(12)) / 3)


def test_an_operator_nobody_tried_could_gain_all_it_has():
    new, tried = _operator("new", [1e-3]), _operator("tried", [5e-4] * 9)
    ucb = UCB(**SETTING)
    assert ucb.gains.gains([new]) == [1e-3]
    assert ucb.pick([new, tried], 0) == "new"


def test_an_operator_that_is_slow_for_its_family_promises_more():
    fast = _operator("fast", [1e-3] * 9, similar=("slow",))
    slow = _operator("slow", [8e-3] * 5 + [4e-3] * 4, similar=("fast",))
    alone = _operator("alone", [1e-3] * 9)
    operators = [fast, slow, alone]
    assert [potential(operator, speeds_of(operators)) for operator in operators] == [1.0, 3.0, 1.0]
    heeding, blind = (UCB(**SETTING, heed_potential=heed) for heed in (True, False))
    for scheduler, factors in ((heeding, [1.0, 3.0, 1.0]), (blind, [1.0, 1.0, 1.0])):
        bounds = scheduler.bounds(operators, operators, slot=6)
        plain = blind.bounds(operators, operators, slot=6)
        assert [bounds[o.key] / plain[o.key] for o in operators] == pytest.approx(factors)


def test_slots_that_bring_nothing_make_a_slow_operator_promise_less():
    fast = _operator("fast", [1e-3] * 9)
    idle = [_operator("slow", [8e-3, *[4e-3] * 4 * slots], similar=("fast",)) for slots in (1, 2, 4)]
    assert [idle_slots(operator) for operator in idle] == [0, 1, 3]
    found = [potential(operator, speeds_of([fast, operator])) for operator in idle]
    assert found == [3.0, 2.0, 1.5]
    noise = _operator("slow", [4e-3] * 5 + [3.99e-3] * 4)
    assert idle_slots(noise) == 2


def test_an_operator_that_cannot_reach_its_relatives_is_not_fed_while_others_gain():
    """As seen: one 1x1 convolution, slow for its family, had 97 of 220 trials for nothing."""
    relatives = tuple(f"fast{n}" for n in range(4))
    stuck = RecordedCurve("stuck", 1, 10**8, [0.2 * i for i in range(161)], [2.0e-3] + [1.9e-3] * 160, relatives)
    others = [
        RecordedCurve(
            f"gains{n}", 1, 10**8, [0.2 * i for i in range(161)], [1e-3 * 0.99**i for i in range(161)], relatives
        )
        for n in range(6)
    ]
    fast = [RecordedCurve(key, 1, 10**8, [0.2 * i for i in range(9)], [1e-4] * 9) for key in relatives]
    run = replay(UCB(**{**SETTING, "slot_trials": 8}), [stuck, *others, *fast], 8, max_slots=30, patience_trials=64)
    counts = Counter(run.choices)
    assert counts["stuck"] <= 6
    assert all(counts[other.key] >= 3 for other in others)


def test_a_slot_that_takes_longer_has_to_gain_more():
    quick = _operator("quick", [1e-3] * 5, seconds=1.0)
    slow = _operator("slow", [1e-3] * 5, seconds=9.0)
    new = _operator("new", [1e-3])
    assert slot_seconds([quick, slow, new], [quick, slow, new]) == pytest.approx([0.6, 1.4, 1.0])
    assert slot_seconds([new], [new]) == [1.0]
    minded, blind = (UCB(**SETTING, per_second=value) for value in (True, False))
    assert minded.pick([slow, quick], 4) == "quick"
    with_seconds, without = (one.bounds([slow, quick], [slow, quick], 4) for one in (minded, blind))
    assert without["quick"] / with_seconds["quick"] == pytest.approx(0.6)
    assert without["slow"] / with_seconds["slow"] == pytest.approx(1.4)


def test_potential_needs_something_to_compare_with():
    works = _operator("works", [1e-3] * 9, similar=("broken", "works", "gone"))
    broken = _operator("broken", [math.inf] * 9, similar=("works",))
    assert [potential(operator, speeds_of([works, broken])) for operator in (works, broken)] == [1.0, 1.0]


def test_epsilon_one_is_uniform_and_zero_is_greedy():
    operators = [_operator("big", [1.0] * 5), _operator("small", [1e-3] * 5)]
    assert set(_serve("epsilon_greedy", operators, 20, epsilon=0.0)) == {"big"}
    assert Counter(_serve("epsilon_greedy", operators, 400, epsilon=1.0))["small"] == pytest.approx(200, abs=50)


def test_softmax_is_greedier_the_colder_it_is():
    operators = [_operator("big", [1.0] * 5), _operator("small", [5e-1] * 5)]
    small = [Counter(_serve("softmax", operators, 200, temperature=t))["small"] for t in (0.02, 0.5, 100.0)]
    assert small[0] == 0
    assert small[0] < small[1] < small[2]
    assert small[2] == pytest.approx(100, abs=30)


def test_a_forecast_is_made_once_for_each_history(monkeypatch):
    """What did not change is not computed again; what did is."""
    scheduler = make("scheduler", "ucb", Context(**SETTING))
    asked = []
    original = scheduler.gains.belief.forecast
    monkeypatch.setattr(
        scheduler.gains.belief, "forecast", lambda key, *rest: asked.append(key) or original(key, *rest)
    )
    operators = [_operator("a", [1e-3] * 5), _operator("b", [1e-3] * 5)]
    scheduler.pick(operators, 0)
    scheduler.pick([replace(o, history=list(o.history)) for o in operators], 1)
    assert asked == ["a", "b"]
    scheduler.pick([operators[0], _operator("b", [1e-3] * 4 + [9e-4])], 2)
    assert asked == ["a", "b", "b"]


@pytest.mark.parametrize(
    ("history", "patience", "finished"),
    [
        ([2.0, 1.0, 1.0, 1.0], 2, True),
        ([2.0, 1.0, 1.0, 1.0], 3, False),
        ([2.0, 2.0], 2, False),
        ([math.inf] * 4, 3, True),
        ([math.inf, 1.0], 1, False),
    ],
)
def test_an_operator_is_finished_after_long_without_improvement(history, patience, finished):
    assert is_finished(_operator("a", history), patience) is finished


def test_the_papers_bound_is_gain_in_milliseconds_plus_a_bonus_that_falls_with_slots():
    scheduler = make("scheduler", "dynatune_paper", Context(**SETTING))
    flat, rising = [0.01] * 17, [0.01 * 0.95**n for n in range(17)]
    often, seldom = _operator("often", flat, slot_ends=(8, 10, 12, 16)), _operator("seldom", flat, slot_ends=(16,))
    assert scheduler.pick([often, seldom], 5) == "seldom"  # equal gains: sqrt(2 ln 6 / slots) decides
    gaining = _operator("gaining", rising, slot_ends=(8, 10, 12, 16))
    assert scheduler.gain(gaining) > scheduler.gain(seldom)
    heavy = replace(gaining, weight=10_000)
    bonus = math.sqrt(2 * math.log(6)) * (1 - 0.5)
    assert 1e3 * (scheduler.gain(heavy) - scheduler.gain(seldom)) > bonus
    assert scheduler.pick([heavy, seldom], 5) == "gaining"


def test_the_papers_bound_gives_everybody_a_first_slot():
    tuned, light = _operator("tuned", [1.0, 0.5], slot_ends=(1,)), _operator("light", [1e-6])
    assert make("scheduler", "dynatune_paper", Context(**SETTING)).pick([tuned, light], 1) == "light"
