"""When a hub ends by itself.

Imports no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...pipeline.text.format import counted, duration
from .expected_members import ExpectedMembers
from .members import COUNTED
from .state import HubState


class HubShutdown:
    """End the hub when nobody is there and nobody is awaited.

    Belongs to the hub's loop.

    Args:
        expected: whom the hub awaits; None for a hub that does not end by itself.
        stop: ends the hub.
        event: called with the name of a member, and what happened to it.
    """

    def __init__(
        self,
        state: HubState,
        expected: ExpectedMembers | None,
        stop: Callable[[], None],
        event: Callable[[str, str], object],
    ) -> None:
        self._state, self._expected, self._stop, self._event = state, expected, stop, event

    def check(self) -> None:
        """Stop the hub if all have left and none is awaited; call it when members change, and regularly."""
        state, expected = self._state, self._expected
        # Also those who left a dead hub, whose place this one has taken.
        anyone_left = sum(state.arrived.values()) > sum(state.present.values())
        if expected is None or not anyone_left or not state.begun or state.awaits_anyone:
            return
        now, seconds = asyncio.get_running_loop().time(), state.job.run.start_timeout_seconds
        for role, count in expected.update(now, state.arrived, state.present, seconds).items():
            missing = counted(count, COUNTED[role])
            self._event("hub", f"no longer awaits {missing} that did not come within {duration(seconds)}")
        if expected.is_over:
            self._stop()
