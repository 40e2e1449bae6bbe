"""When a checkpoint is due."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.nodes.coordinator.checkpoint.manager import IntervalTrigger

# Examples, seconds and perhaps epochs, and whether one is due then; None: one is taken.
Look = tuple[tuple[Any, ...], bool | None]
AT_EACH_MULTIPLE: list[Look] = [
    *[((0, 0.0), False), ((99, 1e6), False), ((101, 0.0), True), ((101, 0.0), True)],
    *[((250, 0.0), None), ((299, 0.0), False), ((300, 0.0), True)],
]
GOES_ON: list[Look] = [((1234, 0.0), False), ((1299, 0.0), False), ((1300, 0.0), True)]
SINCE_THE_LAST: list[Look] = [
    *[((0, 5.0), False), ((10**9, 14.9), False), ((0, 15.0), True)],
    *[((0, 18.0), None), ((0, 27.9), False), ((0, 28.0), True)],
]
WHICHEVER_IS_FIRST: list[Look] = [((0, 0.0), False), ((100, 1.0), True), ((1, 10.0), True)]
BY_EPOCHS: list[Look] = [
    *[((0, 0.0, 0), False), ((10**9, 1e9, 1), False), ((0, 0.0, 2), True), ((0, 0.0, 3), True)],
    *[((0, 0.0, 3), None), ((0, 0.0, 3), False), ((0, 0.0, 4), True)],
]
NEVER: list[Look] = [((0, 0.0), False), ((10**9, 10.0**9), False)]


@pytest.mark.parametrize(
    ("every", "looks"),
    [
        ((100, 0.0), AT_EACH_MULTIPLE),
        ((100, 0.0), GOES_ON),
        ((0, 10.0), SINCE_THE_LAST),
        ((100, 10.0), WHICHEVER_IS_FIRST),
        ((0, 0.0, 2), BY_EPOCHS),
        ((0, 0.0), NEVER),
    ],
    ids=["examples", "a run that goes on", "seconds", "both", "epochs", "never"],
)
def test_one_is_due(every: tuple[Any, ...], looks: list[Look]) -> None:
    trigger = IntervalTrigger(*every)
    for at, due in looks:
        if due is None:
            trigger.done(*at)
        else:
            assert trigger.now(*at) is due, at
