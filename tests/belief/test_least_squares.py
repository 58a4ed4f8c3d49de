"""The fit against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import least_squares

from slipstream.belief.curves import FAMILIES
from slipstream.belief.least_squares import fit
from slipstream.belief.observations import observe
from slipstream.belief.posterior import Posterior
from slipstream.testing.synthetic import best_so_far


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("trials", [12, 100])
def test_no_fit_is_much_worse_than_scipys_from_the_same_start(name, trials):
    rng = np.random.default_rng(trials)
    for _ in range(5):
        posterior = Posterior(FAMILIES[name], observe(0.3 / best_so_far(rng, 400)[: trials + 1], 16))
        start = (posterior.low + posterior.high) / 2
        root = np.sqrt(posterior.seen.weight)
        theirs = least_squares(
            lambda theta, p=posterior, r=root: r * (p.values(theta) - p.seen.y),
            start,
            bounds=(posterior.low, posterior.high),
        )
        ours = fit(posterior, start)
        assert np.all((ours >= posterior.low) & (ours <= posterior.high))
        assert posterior.squares(ours) <= posterior.squares(start)
        assert posterior.squares(ours) <= 1.1 * posterior.squares(theirs.x)


def test_an_exact_curve_is_found():
    curve = FAMILIES["log_power"]
    theta = np.array([0.05, 1.0, 0.3])
    x = np.arange(1.0, 66)
    share = 0.3 * curve.value(theta, np.log(x), np.log(81.0))
    seen = observe(share, 16)
    posterior = Posterior(curve, seen)
    found = fit(posterior, (posterior.low + posterior.high) / 2)
    np.testing.assert_allclose(posterior.values(found), seen.y, atol=1e-3)
