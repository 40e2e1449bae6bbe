"""When a hub ends by itself.

Imports no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...pipeline.text.format import counted, duration
from .attendance import Attendance
from .members import COUNTED
from .state import HubState


class HubEnd:
    """End the hub when nobody is there and nobody is awaited.

    Belongs to the hub's loop.

    Args:
        attendance: whom the hub awaits; None for a hub that does not end by itself.
        stop: ends the hub.
        event: called with the name of a member, and what happened to it.
    """

    def __init__(
        self,
        state: HubState,
        attendance: Attendance | None,
        stop: Callable[[], None],
        event: Callable[[str, str], None],
    ) -> None:
        self._state, self._attendance, self._stop, self._event = state, attendance, stop, event
        self._anyone_left = False

    def someone_left(self) -> None:
        """Look after a member has left or died, or may no longer come back."""
        self._anyone_left = True
        self.look()

    def look(self) -> None:
        """Look again: those who were awaited may be so no longer."""
        state, attendance = self._state, self._attendance
        if attendance is None or not self._anyone_left or not state.begun or state.awaits_anyone:
            return
        now, seconds = asyncio.get_running_loop().time(), state.job.run.start_timeout_seconds
        for role, count in attendance.look(now, state.arrived, state.present, seconds).items():
            missing = counted(count, COUNTED[role])
            self._event("hub", f"no longer awaits {missing} that did not come within {duration(seconds)}")
        if attendance.is_over:
            self._stop()
