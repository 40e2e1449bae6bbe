"""Detection of broken paths to living nodes, by unanswered requests.

The coordinator hears of both ends, so it declares neither dead, and requests that are sent again for ever
would be a job that hangs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...pipeline.errors import ExitCode, ShadowSyncError

# The coordinator declares a silent node dead after one node timeout. So one that is not dead after four is
# alive, and the path to it is broken.
UNANSWERED_TIMEOUTS: Final = 4


class PeerUnreachable(ShadowSyncError):
    """A living node does not answer this trainer.

    `where` names the node.
    """

    exit_code = ExitCode.STOPPED_BY_DEATH


class AnswerWatch:
    """Time each node has left requests unanswered; no I/O, no clock.

    Args:
        own: this trainer's name, for the error.
        limit_seconds: how long it may be.
    """

    def __init__(self, own: str, limit_seconds: float) -> None:
        self._own, self._limit = own, limit_seconds
        self._unanswered: dict[str, float] = {}
        self._checked_at: float | None = None

    def heard(self, node: str) -> None:
        """Record a message of this node."""
        self._unanswered.pop(node, None)

    def check(self, now: float, asked: Iterable[str]) -> None:
        """Add the time since the last check for unanswered nodes.

        `now` is of a steady clock: this worker's own pauses, in which it asks nothing, do not count.

        Raises PeerUnreachable if it is too long for one of them.
        """
        before, self._checked_at = self._checked_at, now
        step = now - before if before is not None else 0.0
        self._unanswered = {node: self._unanswered.get(node, 0.0) + step for node in asked}
        for node, seconds in self._unanswered.items():
            if seconds > self._limit:
                raise PeerUnreachable(
                    f"has not answered {self._own} for {self._limit:g} s, although both are alive",
                    where=node,
                    remedy="check the network between them",
                )
