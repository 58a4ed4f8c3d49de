"""What a session is told to do, and to do without."""

from __future__ import annotations

import json

import pytest

from slipstream.search.diffusion import DiffusionOptions
from slipstream.session.settings import PARTS, Settings, SettingsError, make_settings


def test_parts_left_out_come_back_from_json():
    settings = make_settings(others={"without": ["guess", "potential"]})
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
    assert settings.scheduler_options() == {"heed_potential": False}


def test_on_a_gpu_dynatune_does_not_heed_the_potential_and_others_know_nothing_of_it():
    assert make_settings().without == ()
    assert make_settings(gpu=True).without == ("potential",)
    assert make_settings(gpu=True, others={"without": ["potential", "guess"]}).without == ("potential", "guess")
    for scheduler in ("ucb", "gradient"):
        assert make_settings(gpu=True, scheduler=scheduler).without == ()
    assert make_settings(gpu=True, preset="metaschedule").without == ()


@pytest.mark.parametrize("part", PARTS)
def test_every_part_changes_something(part: str):
    settings = make_settings(others={"without": [part]})
    told = part in ("own_sketches", "followers", "news") or settings.scheduler_options()
    assert told or DiffusionOptions.without(settings.without) != DiffusionOptions()


def test_ways_to_carry_over_are_left_out_one_by_one():
    assert DiffusionOptions.without(["scale", "random"]).propagations == ("keep",)
    assert DiffusionOptions.without([]) == DiffusionOptions()


@pytest.mark.parametrize(
    ("without", "said"), [(["magic"], "no part 'magic'.*choose from own_sketches"), ("guess", "list")]
)
def test_mistakes_say_what_to_do(without: object, said: str):
    with pytest.raises(SettingsError, match=said):
        make_settings(others={"without": without})
