"""When a hub that ends by itself does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from shadowsync.attached.hub.expected_members import ExpectedMembers
from shadowsync.attached.hub.members import LOOP
from shadowsync.attached.hub.shutdown import HubShutdown
from shadowsync.attached.hub.state import HubState
from shadowsync.attached.job import loop_job


def is_over(*, arrived: int, present: int, awaits: bool = False) -> bool:
    """Whether a hub ends at its first look, as one that has just taken the place of a dead one does."""
    state = SimpleNamespace(
        begun=arrived > 0,
        awaits_anyone=awaits,
        arrived={LOOP: arrived},
        present={LOOP: present},
        job=loop_job({}),
    )
    stops: list[bool] = []

    async def check() -> None:
        expected = ExpectedMembers()
        HubShutdown(cast("HubState", state), expected, lambda: stops.append(True), lambda *_: None).check()

    asyncio.run(check())
    return bool(stops)


def test_a_hub_is_over_whose_loops_left_the_dead_one() -> None:
    assert is_over(arrived=2, present=0)


@pytest.mark.parametrize(
    ("arrived", "present", "awaits"), [(0, 0, False), (2, 2, False), (2, 1, False), (2, 0, True)]
)
def test_it_goes_on_while_somebody_is_there_or_awaited(arrived: int, present: int, awaits: bool) -> None:
    assert not is_over(arrived=arrived, present=present, awaits=awaits)
