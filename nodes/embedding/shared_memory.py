"""What a worker shares with an embedding node of its machine: memory for vectors and gradients."""

from __future__ import annotations

import heapq
import logging
import os
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import lend
from ...pipeline.wire.messages import Attach, Attached, Lookup, Push
from ...pipeline.wire.retransmission import ATTACH
from ...pipeline.wire.segment import FLOAT_BYTES, HEAD_BYTES, OwnSegment, running_kernel

PAGE_FLOATS: Final = 1024
# Batches of one size have requests of nearly one size: what is a little larger than the first still fits.
SPARE_SHARE: Final = 0.25
_NOTHING: Final = np.zeros(0, np.float32)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """A part of a segment, for one request: its vectors until the step with them is done, or its gradients
    until the node has answered.

    Attributes:
        segment: its number.
        offset: where in it, in bytes.
        values: float32 [floats], there. The lease ends with this array and all that is made from it without
            a copy (see `lend`): no one may have to know who else still computes with it.
    """

    segment: int
    offset: int
    values: Float32Array

    def carry(self, message: Lookup | Push) -> Lookup | Push:
        """The message as it is sent where its answer, or its gradients, lie here."""
        if isinstance(message, Lookup):
            return Lookup(
                message.request,
                message.rows,
                message.counts,
                message.bag_lengths,
                self.segment,
                self.offset,
                len(self.values),
            )
        return Push(
            message.request,
            message.id,
            message.version,
            message.rows,
            _NOTHING,
            message.lr_scale,
            message.counts,
            message.bag_lengths,
            self.segment,
            self.offset,
            len(self.values),
        )

    def holds(self, values: Float32Array) -> bool:
        """Whether these values lie here, and begin where this begins."""
        here, there = (array.__array_interface__["data"][0] for array in (self.values, values))
        return bool(here == there)


class SharedRows:
    """Of one worker and one embedding node. Owned by the worker's thread.

    A segment is offered to the node when there is something to share, and used once the node has it; until
    then, and where it cannot have it, nothing is lent and all goes over the socket. A block is lent again
    only when its lease has ended: no open request, no tensor of a step, nothing that a
    model keeps. The lowest that is free is lent first: few are ever touched, and those stay in the cache.

    A larger segment takes the place of one whose blocks are too small, and of one that has lost half of them.

    Args:
        blocks: how many a segment has.

    Attributes:
        bytes: of vectors and gradients that went through it.
        refused: whether this node cannot have what it was offered.
    """

    def __init__(self, node: str, blocks: int) -> None:
        self._node = node
        self._count = blocks
        self._segment: OwnSegment | None = None
        self._number = 0
        self._block_floats = 0
        self._needed_floats = 0
        # Offsets in the segment that the node has: a heap of those to lend, and those never to lend again.
        self._idle: list[int] = []
        self._retired: set[int] = set()
        # Segment and offset of leases that ended. Whichever thread drops the last reference appends.
        self._returned: deque[tuple[int, int]] = deque()
        self._offer: Attach | None = None
        self._offered_at = 0.0
        self.bytes = 0
        self.refused = self._over = False

    def take(self, floats: int) -> Lease | None:
        """Memory for so many floats, with undefined contents; None where there is none."""
        self._needed_floats = max(self._needed_floats, floats)
        if floats > self._block_floats or not floats:
            return None
        self._collect()
        if self._segment is None or not self._idle:
            return None
        number, offset = self._number, heapq.heappop(self._idle)
        values = lend(self._segment.floats(offset, floats), lambda: self._returned.append((number, offset)))
        return Lease(number, offset, values)

    def has(self, lease: Lease) -> bool:
        """Whether the node has the segment in which this lies: no other was offered since."""
        return lease.segment == self._number and not self._over

    def retire(self, lease: Lease) -> None:
        """Never lends this again: the node may still read or write it, nobody knows until when."""
        if lease.segment == self._number:
            self._retired.add(lease.offset)

    def offer(self, now: float, floats: int = 0) -> Attach | None:
        """What is to be sent to the node now, if anything, before so many floats are asked for: a segment, or
        the same one again. What was lent of another one, and is not sent yet, the node has no more then."""
        self._needed_floats = max(self._needed_floats, floats)
        if self._over or not self._needed_floats:
            return None
        if self._offer is None:
            large_enough = self._needed_floats <= self._block_floats
            enough = large_enough and 2 * len(self._retired) < self._count
            if enough or not self._make():
                return None
        elif not ATTACH.due(self._offered_at, now):
            return None
        self._offered_at = now
        return self._offer

    def answered(self, message: Attached) -> None:
        """The node's answer to what was offered."""
        if self._offer is None or message.segment != self._offer.segment:
            return
        self._offer = None
        if message.shared:
            # Ascending, so it is a heap.
            self._idle = [HEAD_BYTES + at * self._block_floats * FLOAT_BYTES for at in range(self._count)]
            self._drop_descriptor()
        else:
            self._give_up(message.why)

    def close(self) -> None:
        """Lends nothing any more, and offers nothing."""
        self._over = True
        self._offer, self._idle = None, []
        self._drop_descriptor()
        self._segment = None

    def _make(self) -> bool:
        floats = int(self._needed_floats * (1 + SPARE_SHARE))
        floats = -(-floats // PAGE_FLOATS) * PAGE_FLOATS
        # What is lent keeps its segment mapped; nothing more is lent of it.
        self._idle = []
        try:
            segment = OwnSegment(HEAD_BYTES + self._count * floats * FLOAT_BYTES)
        except OSError as error:
            self._give_up(str(error))
            return False
        self._retired = set()
        self._segment, self._block_floats, self._number = segment, floats, self._number + 1
        self._offer = Attach(
            segment=self._number,
            pid=os.getpid(),
            descriptor=segment.descriptor,
            size_bytes=segment.size_bytes,
            boot=running_kernel(),
            token=segment.token,
        )
        return True

    def _collect(self) -> None:
        while self._returned:
            number, offset = self._returned.popleft()
            if (number, self._over) == (self._number, False) and offset not in self._retired:
                heapq.heappush(self._idle, offset)

    def _drop_descriptor(self) -> None:
        if self._segment is not None:
            self._segment.close()

    def _give_up(self, why: str) -> None:
        log.debug("shares no memory with %s: %s", self._node, why)
        self.refused = True
        self.close()
