"""The retransmission policy, and all of its intervals.

A request is sent again until its reply comes, and the receiver recognises a repeat. So an interval that is
too short costs messages and one that is too long costs time, but neither gives a wrong result. Each interval
is long compared with the usual round trip, and several fit into the time after which a peer is declared dead.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetransmitPolicy:
    """The time to wait for a reply.

    After that the request is sent again. No I/O, no clock.

    Attributes:
        interval_seconds: time from one transmission, or sign of progress, to the next transmission.
    """

    interval_seconds: float

    def __post_init__(self) -> None:
        if not self.interval_seconds > 0:
            raise ValueError(f"interval_seconds: {self.interval_seconds} given; it must be more than 0")

    @classmethod
    def in_timeout(cls, timeout_seconds: float, times: int) -> RetransmitPolicy:
        """Divide a timeout into `times` intervals.

        This gives at most `times` - 1 repeats.
        """
        return cls(timeout_seconds / times)

    def due(self, since: float, now: float) -> bool:
        """Return whether a request sent at `since` is due again."""
        return now - since >= self.interval_seconds

    def left_seconds(self, since: float, now: float) -> float:
        """Seconds until it is due; 0 if it is due already."""
        return max(0.0, since + self.interval_seconds - now)


# Small requests on an idle link, answered in milliseconds; a person may be waiting for the reply.
CONTROL = RetransmitPolicy(1.0)
# Large messages to busy threads: a queue of them may take a second, and a repeat is as large again.
LOOKUP = RetransmitPolicy(3.0)
DELIVERY = RetransmitPolicy(3.0)
# Small and unacknowledged; a lost one is replaced by the next.
CREDIT = RetransmitPolicy(1.0)
# A request to open shared memory waits behind the large messages in the same queue.
ATTACH = RetransmitPolicy(3.0)
# An exchange with the center and a round of an all-reduce have the timeout of the job, sync.timeout_seconds.
# An exchange repeats a whole slice, so it does so once; a peer is asked by one small message, so more often.
CENTER_TIMES = 2
PEER_TIMES = 4
