"""What a session is told to do, and to do without."""

from __future__ import annotations

import json

import pytest

from slipstream.diffusion.parts import Parts
from slipstream.session.settings import PARTS, Settings, SettingsError, make_settings


def test_parts_left_out_come_back_from_json():
    settings = make_settings(others={"without": ["guess", "potential"]})
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
    assert settings.scheduler_options() == {"heed_potential": False}


def test_the_parts_are_the_same_on_a_gpu():
    assert make_settings().parts == make_settings(gpu=True).parts == Parts()
    assert make_settings(gpu=True, others={"without": ["guess"]}).parts.left_out == ("guess",)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_can_be_left_out_by_its_name(part: str):
    settings = make_settings(others={"without": [part]})
    assert settings.parts.left_out == (part,)
    assert getattr(settings.parts, part) is False
    assert settings.to_json()["without"] == (part,)


def test_an_unknown_part_names_all_there_are():
    with pytest.raises(SettingsError) as refused:
        make_settings(others={"without": ["guess", "magic"]})
    assert all(part in str(refused.value) for part in PARTS)


@pytest.mark.parametrize(
    ("without", "said"), [(["magic"], "no part 'magic'.*choose from own_sketches"), ("guess", "list")]
)
def test_mistakes_say_what_to_do(without: object, said: str):
    with pytest.raises(SettingsError, match=said):
        make_settings(others={"without": without})


@pytest.mark.parametrize(("cores", "in_flight", "searches"), [(1, 2, 1), (2, 2, 1), (4, 2, 1), (8, 4, 2), (16, 8, 4)])
def test_more_slots_on_more_cores(cores: int, in_flight: int, searches: int) -> None:
    settings = make_settings(cores=cores)
    assert (settings.in_flight, settings.searches) == (in_flight, searches)


def test_what_keeps_slots_one_after_the_other() -> None:
    assert make_settings().in_flight == 1
    assert make_settings(cores=16, deterministic=True).in_flight == 1
    assert make_settings(cores=16, preset="metaschedule").in_flight == 1
    assert make_settings(cores=16, others={"in_flight": 1}).in_flight == 1


@pytest.mark.parametrize(("cores", "in_flight", "searches"), [(0, 6, 1), (2, 6, 1), (8, 7, 2), (16, 8, 4), (128, 8, 4)])
def test_a_gpu_has_more_slots_and_searches_keep_up_with_the_cores_that_build(
    cores: int, in_flight: int, searches: int
) -> None:
    settings = make_settings(cores=cores, gpu=True)
    assert (settings.in_flight, settings.searches) == (in_flight, searches)
