"""Replacements of dead nodes: a state machine without I/O."""

from __future__ import annotations


class Successors:
    """The supervisor's reports on ended nodes of one role. Owned by the coordinator's loop."""

    def __init__(self) -> None:
        # Tokens of nodes that no other is started for, of those being started, and whose place each takes.
        self._final: set[str] = set()
        self._starting: set[str] = set()
        self._before: dict[str, str] = {}

    @property
    def coming(self) -> bool:
        """Whether a node is being started that has not said hello."""
        return bool(self._starting)

    def exited(self, token: str, successor: str) -> None:
        """Record that a node ended, with its replacement's token if any."""
        self._starting.discard(token)
        if successor:
            self._starting.add(successor)
            self._before[successor] = token
            return
        place: str | None = token
        while place is not None:
            self._final.add(place)
            place = self._before.get(place)

    def arrived(self, token: str) -> None:
        """Record that a node has said hello."""
        self._starting.discard(token)

    def is_final(self, token: str) -> bool:
        """Return whether no replacement is on its way."""
        return token in self._final
