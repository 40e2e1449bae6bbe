"""What is queued for a peer: each small message once, in order, and so many at most."""

from __future__ import annotations

import numpy as np
from shadowsync.nodes.allreduce.context import MOST_NOTICES, SendQueue
from shadowsync.pipeline.wire.peer_messages import PeerReady, PeerResolve, PeerWait


def _wait(*blocked_by: int) -> PeerWait:
    return PeerWait(1, 2, np.array(blocked_by, dtype=np.int32))


def _numbers(queue: SendQueue) -> list[int]:
    return [message.number for message in iter(lambda: queue.take(0), None)]  # type: ignore[attr-defined]


def test_an_equal_message_is_not_queued_twice() -> None:
    queue = SendQueue()
    for message in (_wait(3), PeerReady(1, 2, 0), _wait(3), PeerResolve(1, 2), _wait(4), _wait(3)):
        queue.notice(0, message)
    taken = list(iter(lambda: queue.take(0), None))
    assert [type(message) for message in taken] == [PeerWait, PeerReady, PeerResolve, PeerWait]
    assert [message.blocked_by.tolist() for message in taken if isinstance(message, PeerWait)] == [[3], [4]]
    queue.notice(0, _wait(3))
    assert queue.waiting() == [0], "it was taken: now it says something again"


def test_of_too_many_the_oldest_goes() -> None:
    queue = SendQueue()
    for number in range(MOST_NOTICES + 3):
        queue.notice(0, PeerResolve(1, number))
    assert _numbers(queue) == list(range(3, MOST_NOTICES + 3))
