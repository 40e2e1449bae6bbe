"""The mean of curves that were not measured at the same places."""

from __future__ import annotations

import numpy as np
from shadowsync.lab.comparison.curves import from_start, mean_curve


def test_the_mean_of_straight_lines() -> None:
    grid, values = mean_curve([[(0.0, 0.0), (10.0, 10.0)], [(2.0, 4.0), (5.0, 10.0), (8.0, 16.0)]])
    assert (grid[0], grid[-1]) == (2.0, 8.0), "only where both are"
    np.testing.assert_allclose(values, 1.5 * grid)
    alone = mean_curve([[(0.0, 0.0), (10.0, 10.0)]])
    assert alone[0][-1] == 10.0, "the control"


def test_curves_that_never_meet_have_no_mean() -> None:
    assert len(mean_curve([[(0.0, 1.0), (1.0, 1.0)], [(2.0, 1.0), (3.0, 1.0)]])[0]) == 0
    assert len(mean_curve([])[0]) == len(mean_curve([[]])[0]) == 0
    grid, values = mean_curve([[(3.0, 1.0)], [(3.0, 2.0)]])
    assert (grid.tolist(), values.tolist()) == ([3.0], [1.5])


def test_curves_begin_together() -> None:
    assert from_start([(3.0, 1.0), (5.0, 2.0)]) == [(0.0, 1.0), (2.0, 2.0)]
    assert from_start([]) == []


def test_a_curve_does_not_count_in_its_pause() -> None:
    early, late = [(float(at), 2.0) for at in range(11)], [(float(at), 4.0) for at in range(40, 51)]
    grid, alone = mean_curve([[*early, *late]])
    assert np.isnan(alone[(grid > 11) & (grid < 40)]).all(), "no line across a pause"
    assert (alone[grid <= 10] == 2.0).all()
    steady = [(float(at), 6.0) for at in range(51)]
    grid, both = mean_curve([[*early, *late], steady])
    assert (both[(grid > 11) & (grid < 40)] == 6.0).all()
    assert (both[grid <= 10] == 4.0).all()
