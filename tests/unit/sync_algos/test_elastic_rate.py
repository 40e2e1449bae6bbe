"""An elastic rate that changes while a job trains."""

from __future__ import annotations

import pytest
import torch
from shadowsync.sync_algos.catalog.registry import ALGORITHMS, make_algorithm

TUNABLE = sorted(name for name, cls in ALGORITHMS.items() if cls.closest_elastic_rate is not None)


@pytest.mark.parametrize("name", TUNABLE)
def test_it_takes_the_rate_as_if_the_job_had_given_it(name: str) -> None:
    own = make_algorithm(name, {"elastic_rate": 0.1})
    closest = own.closest_elastic_rate
    assert own.elastic == (0.1, closest)
    before = own.options
    own.set_elastic_rate(0.25)
    assert own.options == make_algorithm(name, {"elastic_rate": 0.25}).options
    assert own.elastic == (0.25, closest)
    # Who still uses the last options has them whole.
    assert before.elastic_rate == 0.1


@pytest.mark.parametrize("rate", [0.0, 1.5, float("nan")])
def test_a_rate_that_cannot_be_is_refused_and_changes_nothing(rate: float) -> None:
    own = make_algorithm("easgd", {})
    with pytest.raises(ValueError, match="elastic_rate"):
        own.set_elastic_rate(rate)
    assert own.options == make_algorithm("easgd", {}).options


def test_others_have_no_rate_to_change() -> None:
    assert make_algorithm("decoupled", {}).elastic is None
    assert "easgd" in TUNABLE


@pytest.mark.parametrize("center_rate", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("replica_rate", [0.01, 0.5, 1.0])
def test_two_ends_with_different_rates_stay_between_their_values(
    center_rate: float, replica_rate: float
) -> None:
    ends = [make_algorithm("easgd", {"elastic_rate": rate}) for rate in (center_rate, replica_rate)]
    center, replica = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 5.0])
    low, high = torch.minimum(center, replica), torch.maximum(center, replica)
    delta = ends[0].center_rule(center, replica)
    replica = replica - ends[1].replica_share() * delta  # type: ignore[attr-defined]
    for value in (center, replica):
        assert bool(torch.all((low <= value) & (value <= high)))
