"""The retransmission policy, and all of its intervals.

A request is sent again until its reply comes, and the receiver recognizes a repeat. So a short interval costs
messages and a long one costs time, but neither gives a wrong result. Each interval is long compared with the
usual round trip, and several fit into the time after which a peer is declared dead.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetransmitPolicy:
    """The time to wait for a reply before the request is sent again.

    Attributes:
        interval_seconds: time from a transmission, or a sign of progress, to the next transmission.

    Raises ValueError for an interval that is not above 0.
    """

    interval_seconds: float

    def __post_init__(self) -> None:
        if not self.interval_seconds > 0:
            raise ValueError(f"interval_seconds: {self.interval_seconds} given; it must be more than 0")

    @classmethod
    def in_timeout(cls, timeout_seconds: float, times: int) -> RetransmitPolicy:
        """Divide a timeout into `times` intervals, for at most `times` - 1 repeats."""
        return cls(timeout_seconds / times)

    def due(self, since: float, now: float) -> bool:
        """Return whether a request sent at `since` is due again."""
        return now - since >= self.interval_seconds

    def left_seconds(self, since: float, now: float) -> float:
        """Return the seconds until it is due again; 0 if it is due already."""
        return max(0.0, since + self.interval_seconds - now)


# Small requests on an idle link, answered in milliseconds; a person may be waiting for the reply.
CONTROL = RetransmitPolicy(1.0)
# A request that a node must get, repeated when an attempt has failed: it may be back, or able, by then.
REISSUE = RetransmitPolicy(0.1)
# Large messages to busy threads: a queue of them may take a second, and a repeat costs as much again.
LOOKUP = RetransmitPolicy(3.0)
DELIVERY = RetransmitPolicy(3.0)
# Small and unacknowledged; a lost one is replaced by the next.
CREDIT = RetransmitPolicy(1.0)
# A request to open shared memory waits behind the large messages in the same queue.
ATTACH = RetransmitPolicy(3.0)
# Exchanges with the center and rounds of an all-reduce have the job's timeout, sync.timeout_seconds. A repeat
# to the center is a whole slice, so there is one; a repeat to a peer is a small message, so there are more.
CENTER_TIMES = 2
PEER_TIMES = 4
