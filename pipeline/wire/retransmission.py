"""When what was not answered is sent again: all intervals of the package, and the one rule for them.

What asks is sent again until it is answered, and who answers recognises a repeat; so an interval that is too
short costs messages and one that is too long costs time, and neither is ever wrong. Each is long against the
answer's usual way, and several fit into the time after which the other side is held for gone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetransmitPolicy:
    """How long an answer is waited for before its question is sent again; without I/O and clock.

    Attributes:
        interval_seconds: from one sending, or sign of progress, to the next sending.
    """

    interval_seconds: float

    def __post_init__(self) -> None:
        if not self.interval_seconds > 0:
            raise ValueError(f"an interval of {self.interval_seconds} s")

    @classmethod
    def in_timeout(cls, timeout_seconds: float, times: int) -> RetransmitPolicy:
        """So many intervals to a timeout, after which nothing is sent again: at most `times` - 1 repeats."""
        return cls(timeout_seconds / times)

    def due(self, since: float, now: float) -> bool:
        """Whether what was sent at `since` is to be sent again."""
        return now - since >= self.interval_seconds

    def left_seconds(self, since: float, now: float) -> float:
        """How long until it is due; 0 if it is."""
        return max(0.0, since + self.interval_seconds - now)


# Small questions on an idle link, answered in milliseconds: the only one that a person may wait for.
CONTROL = RetransmitPolicy(1.0)
# Large messages to busy threads: a queue of them may take a second, and a repeat is as large again.
LOOKUP = RetransmitPolicy(3.0)
DELIVERY = RetransmitPolicy(3.0)
# Opening memory of another process takes as long as what is before it in the same queue.
ATTACH = RetransmitPolicy(3.0)
# Of a slice of the center and of a round the timeout is the job's (network.timeout_seconds or the like).
# A whole slice is sent again, so once is enough; a peer is asked by one small notice, so often.
CENTER_TIMES = 2
PEER_TIMES = 4
