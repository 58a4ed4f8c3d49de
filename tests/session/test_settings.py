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


@pytest.mark.parametrize("part", PARTS)
def test_every_part_changes_something(part: str):
    settings = make_settings(others={"without": [part]})
    told = part in ("followers", "news") or settings.scheduler_options()
    assert told or DiffusionOptions.without(settings.without) != DiffusionOptions()


def test_ways_to_carry_over_are_left_out_one_by_one():
    assert DiffusionOptions.without(["scale", "random"]).propagations == ("keep",)
    assert DiffusionOptions.without([]) == DiffusionOptions()


@pytest.mark.parametrize(
    ("without", "said"), [(["magic"], "no part 'magic'.*choose from relatives"), ("guess", "list")]
)
def test_mistakes_say_what_to_do(without: object, said: str):
    with pytest.raises(SettingsError, match=said):
        make_settings(others={"without": without})
