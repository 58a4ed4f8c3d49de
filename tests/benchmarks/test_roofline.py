"""The bound of an operator, by hand."""

from __future__ import annotations

import pytest

from benchmarks.roofline import Bound, bandwidth, forms_of
from slipstream.measure import reference_text
from slipstream.store import OperatorRecord
from tests.graph.test_winograd import Convolution, function

MACHINE = {"peak_flops": 1e9, "bandwidth": {"1000": 1e9, "100000": 1e8}}


def test_winograd_multiplies_once_for_each_element_of_a_transformed_tile():
    func = function(Convolution(8, 8, 16, 32))
    forms = forms_of(OperatorRecord("key", "conv", ("conv2d",), 10**6, 10**5, (), reference_text(func)))
    direct = 2 * 8 * 8 * 9 * 16 * 32
    assert forms[""] == {"flops": 10**6, "bytes": 10**5}
    assert forms["winograd2"]["flops"] == 10**6 - direct + 2 * (4 * 4) * 16 * 16 * 32
    assert forms["winograd4"]["flops"] == 10**6 - direct + 2 * (2 * 2) * 36 * 16 * 32
    assert forms["winograd4"]["bytes"] == 10**5 + (36 - 9) * 16 * 32 * 4


def test_the_bound_is_the_longer_of_arithmetic_and_bytes_in_the_best_form():
    operator = {"forms": {"": {"flops": 4000, "bytes": 1000}, "winograd2": {"flops": 1000, "bytes": 2000}}}
    bound = Bound(operator, MACHINE)
    assert (bound.form, bound.by) == ("winograd2", "bytes")
    assert bound.seconds == pytest.approx(2e-6)
    assert bound.arithmetic == pytest.approx(1e-6)


def test_bandwidth_is_that_of_the_next_smaller_amount():
    assert [bandwidth(MACHINE, moved) for moved in (10, 1000, 99999, 100000)] == [1e9, 1e9, 1e9, 1e8]
