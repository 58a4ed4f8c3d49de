"""Which convolutions of the zoo are one family."""

from __future__ import annotations

from tvm import ir

from slipstream.diffusion.families import Member, find_families
from slipstream.graph.forms import forms_of
from slipstream.graph.operators import make_operator
from tests.program.zoo_operators import function, labels, space


def members() -> list[Member]:
    found = [label for label in labels() if label.split("-")[2].startswith("conv2d")]
    made = ((label, make_operator(space(label).key, [ir.GlobalVar("f")], function(label), 1)) for label in found)
    return [Member(operator, space(label)) for label, operator in made]


def test_no_family_holds_operators_with_and_without_winograds_forms() -> None:
    convolutions = members()
    forms = {m.operator.key: forms_of(m.space.func, m.space.target) for m in convolutions}
    families = find_families(convolutions)
    assert len(set(forms.values())) > 1
    assert all(len({forms[key] for key in family.members}) == 1 for family in families)


def test_another_epilogue_does_not_split_a_family() -> None:
    convolutions = members()
    kinds = {m.operator.key: m.operator.kinds for m in convolutions}
    assert any(len({kinds[key] for key in family.members}) > 1 for family in find_families(convolutions))
