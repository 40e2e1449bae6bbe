"""Whom a hub still awaits before it ends, by role.

Imports no torch.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping


class ExpectedMembers:
    """Who came to a hub, is there, and is expected, by role.

    The process that hosts the hub says whom it expects, and waits until they have left; the hub says who is
    there. Without anyone expected it is over once somebody has come and nobody is there. Any thread may call.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Read and written only while the condition is held.
        self._expected: dict[str, int] = {}
        self._arrived: dict[str, int] = {}
        self._present: dict[str, int] = {}
        self._waits_since: dict[str, float] = {}
        self._hub_ended = False

    def expect(self, role: str, count: int) -> None:
        """Expect so many members of a role; 0 for those that have come only."""
        with self._changed:
            self._expected[role] = count
            self._waits_since.pop(role, None)
            self._changed.notify_all()

    def update(
        self, now: float, arrived: Mapping[str, int], present: Mapping[str, int], patience_seconds: float
    ) -> dict[str, int]:
        """Take who came and who is there; return who is given up.

        All three are numbers by role. Those of a role are given up that have not come `patience_seconds`
        after all others of it have left. `now` is in seconds, by the clock of the hub's loop.
        """
        given_up = {}
        with self._changed:
            self._arrived, self._present = dict(arrived), dict(present)
            for role, count in self._expected.items():
                missing = count - self._arrived.get(role, 0)
                if missing <= 0 or missing == count or self._present.get(role, 0):
                    self._waits_since.pop(role, None)
                elif now - self._waits_since.setdefault(role, now) >= patience_seconds:
                    given_up[role] = missing
                    self._expected[role] = 0
            self._changed.notify_all()
        return given_up

    @property
    def is_over(self) -> bool:
        """Whether somebody has come, all who are expected have, and nobody is there."""
        with self._changed:
            roles = {*self._expected, *self._arrived}
            return any(self._arrived.values()) and all(self._are_gone(role) for role in roles)

    def await_gone(self, role: str) -> None:
        """Wait until all who are expected of a role have come and left.

        Returns at once when the hub has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._hub_ended or self._are_gone(role))

    def end(self) -> None:
        """Record that the hub has ended: nobody waits any longer."""
        with self._changed:
            self._hub_ended = True
            self._changed.notify_all()

    def _are_gone(self, role: str) -> bool:
        enough = self._arrived.get(role, 0) >= self._expected.get(role, 0)
        return enough and not self._present.get(role, 0)
