"""Memory that workers share with an embedding node of their machine, on both sides."""

from __future__ import annotations

import heapq
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import lend
from ...pipeline.wire.endpoints import token_of
from ...pipeline.wire.messages import Attach, Attached, Lookup, Push
from ...pipeline.wire.rpc.retransmission import ATTACH
from ...pipeline.wire.segment import (
    FLOAT_BYTES,
    HEAD_BYTES,
    CreatedSegment,
    OpenedSegment,
    SegmentError,
    running_kernel,
)

PAGE_FLOATS: Final = 1024
# Batches of one size have requests of nearly one size, so slightly larger ones should still fit.
SPARE_SHARE: Final = 0.25
_NO_FLOATS: Final = np.zeros(0, np.float32)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """A part of a segment, lent to a request for vectors or gradients.

    Vectors stay until the step with them is done, gradients until the node has answered.

    Attributes:
        segment: the segment's number.
        offset: offset in the segment, in bytes.
        values: the memory, float32 [floats]. The lease ends when this array and all of its views are gone
            (see `lend`), so that nobody has to know who else still uses the memory.
    """

    segment: int
    offset: int
    values: Float32Array

    def carry(self, message: Lookup | Push) -> Lookup | Push:
        """Return the message with its place in the segment."""
        segment, offset, floats = self.segment, self.offset, len(self.values)
        if isinstance(message, Lookup):
            return replace(message, segment=segment, offset=offset, floats=floats)
        return replace(message, gradients=_NO_FLOATS, segment=segment, offset=offset, floats=floats)

    def holds(self, values: Float32Array) -> bool:
        """Return whether these values begin where this lease begins."""
        address, other_address = (array.__array_interface__["data"][0] for array in (self.values, values))
        return bool(address == other_address)


class SharedMemoryClient:
    """A worker's memory for one embedding node; owned by the worker's thread.

    A segment is offered to the node when there is something to share, and used once the node has attached it.
    Until then, or if the node cannot attach it, everything goes over the socket. A block is lent again only
    when its lease has ended: when no open request, tensor of a step, or model still refers to it. The lowest
    free block is lent first, so that few blocks are ever touched, and those stay in the cache.

    A segment is replaced by a larger one if its blocks are too small, or half of them are retired.

    Args:
        blocks: number of blocks of a segment.
        page_lock: called with the memory of each segment, see `nodes.replica.device.Device.page_lock`.

    Attributes:
        shared_bytes: bytes of vectors and gradients that went through it.
        refused: whether this node cannot attach the offered memory.
    """

    def __init__(
        self, node: str, blocks: int, page_lock: Callable[[Float32Array], object] | None = None
    ) -> None:
        self._node = node
        self._count = blocks
        self._page_lock = page_lock
        self._lock: object = None
        self._segment: CreatedSegment | None = None
        self._number = 0
        self._block_floats = 0
        self._needed_floats = 0
        # Offsets in the segment that the node has: a heap of the free blocks, and the retired ones.
        self._free: list[int] = []
        self._retired: set[int] = set()
        # Segment and offset of leases that ended. Whichever thread drops the last reference appends.
        self._returned: deque[tuple[int, int]] = deque()
        self._offer: Attach | None = None
        self._offered_at = 0.0
        self.shared_bytes = 0
        self.refused = self._closed = False

    def successor(self, node: str) -> SharedMemoryClient:
        """Return a replacement for another node, and close this one.

        Old leases are not valid in the new one.
        """
        self.close()
        made = SharedMemoryClient(node, self._count, self._page_lock)
        # The new client continues to count: leases that are still held have numbers of earlier segments.
        made._number = self._number + 1
        return made

    def take(self, floats: int) -> Lease | None:
        """Lend memory for this many floats, with undefined contents; None if there is none."""
        self._needed_floats = max(self._needed_floats, floats)
        if floats > self._block_floats or not floats:
            return None
        self._collect()
        if self._segment is None or not self._free:
            return None
        number, offset = self._number, heapq.heappop(self._free)

        def take_back(_: object = self._lock) -> None:
            self._returned.append((number, offset))

        values = lend(self._segment.floats(offset, floats), take_back)
        return Lease(number, offset, values)

    def has(self, lease: Lease) -> bool:
        """Return whether the node still has the segment of this lease.

        A node keeps a segment until another one is offered.
        """
        return lease.segment == self._number and not self._closed

    def retire(self, lease: Lease) -> None:
        """Exclude this block from leases: the node may use it at any time."""
        if lease.segment == self._number:
            self._retired.add(lease.offset)

    def offer(self, now: float, floats: int = 0) -> Attach | None:
        """Return the offer to send before a request for this many floats, if any.

        The offer is a new segment, or the same one again. With a new one the node drops the previous segment,
        and its leases that are not sent yet become invalid.
        """
        self._needed_floats = max(self._needed_floats, floats)
        if self._closed or not self._needed_floats:
            return None
        if self._offer is None:
            large_enough = self._needed_floats <= self._block_floats
            suffices = large_enough and 2 * len(self._retired) < self._count
            if suffices or not self._make_segment():
                return None
        elif not ATTACH.due(self._offered_at, now):
            return None
        self._offered_at = now
        return self._offer

    def receive_reply(self, message: Attached) -> None:
        """Process the node's answer to an offer."""
        if self._offer is None or message.segment != self._offer.segment:
            return
        self._offer = None
        if message.shared:
            # Ascending, so it is a heap.
            self._free = [
                HEAD_BYTES + block * self._block_floats * FLOAT_BYTES for block in range(self._count)
            ]
            self._close_descriptor()
        else:
            self._give_up(message.why)

    def close(self) -> None:
        """Stop all leases and offers."""
        self._closed = True
        self._offer, self._free = None, []
        self._close_descriptor()
        self._segment, self._lock = None, None

    def _make_segment(self) -> bool:
        floats = int(self._needed_floats * (1 + SPARE_SHARE))
        floats = -(-floats // PAGE_FLOATS) * PAGE_FLOATS
        # Leases keep the old segment mapped; no more of it is lent.
        self._free = []
        try:
            segment = CreatedSegment(HEAD_BYTES + self._count * floats * FLOAT_BYTES)
        except OSError as error:
            self._give_up(str(error))
            return False
        self._retired = set()
        self._segment, self._block_floats, self._number = segment, floats, self._number + 1
        if self._page_lock is not None:
            self._lock = self._page_lock(segment.floats(HEAD_BYTES, self._count * floats))
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
            if (number, self._closed) == (self._number, False) and offset not in self._retired:
                heapq.heappush(self._free, offset)

    def _close_descriptor(self) -> None:
        if self._segment is not None:
            self._segment.close()

    def _give_up(self, why: str) -> None:
        log.debug("no memory is shared with %s: %s", self._node, why)
        self.refused = True
        self.close()


@dataclass(slots=True)
class _Attachment:
    """A worker's segment, its number, and the last lookup answered into it."""

    number: int
    segment: OpenedSegment
    request: int = 0


class SharedMemoryServer:
    """An embedding node's segments, one for each worker.

    Owned by the thread of the socket.

    Args:
        allowed: whether memory may be shared at all.

    Attributes:
        shared_bytes: bytes of vectors and gradients that went through the segments.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._attached: dict[bytes, _Attachment] = {}
        self.shared_bytes = 0

    def __len__(self) -> int:
        return len(self._attached)

    def attach(self, identity: bytes, offer: Attach) -> Attached:
        """Open a worker's offer, which replaces its previous one; a repeat changes nothing."""
        if not self._allowed:
            return Attached(offer.segment, shared=False, why="network.shared_memory is false at the node")
        known = self._attached.get(identity)
        if known is not None and (known.number, known.segment.token) == (offer.segment, offer.token):
            return Attached(offer.segment, shared=True, why="")
        self._attached.pop(identity, None)
        try:
            opened = OpenedSegment(
                pid=offer.pid,
                descriptor=offer.descriptor,
                size_bytes=offer.size_bytes,
                boot=offer.boot,
                token=offer.token,
            )
        except SegmentError as error:
            log.debug("no memory is shared with %r: %s", identity, error)
            return Attached(offer.segment, shared=False, why=str(error))
        self._attached[identity] = _Attachment(offer.segment, opened)
        log.info(
            "shares %d bytes of memory with worker %s", opened.size_bytes, identity.decode("ascii", "replace")
        )
        return Attached(offer.segment, shared=True, why="")

    def target(self, identity: bytes, lookup: Lookup, floats: int) -> Float32Array | None:
        """Return where to write the vectors, float32 [floats]; None for the socket.

        A repeated lookup is answered over the socket: its worker may use the place for something else by now.

        Raises:
            SegmentError: the place is not this worker's, or is for another number of floats.
        """
        if not lookup.segment:
            return None
        attachment = self._find(identity, lookup, floats)
        target = attachment.segment.floats(lookup.offset, floats)
        if lookup.request <= attachment.request:
            return None
        attachment.request = lookup.request
        return target

    def gradients(self, identity: bytes, push: Push, floats: int) -> Float32Array:
        """Return a view, float32 [floats], of the gradients of a push with a `segment`.

        Raises:
            SegmentError: the place is not this worker's, or has another number of floats.
        """
        values = self._find(identity, push, floats).segment.floats(push.offset, floats)
        self.shared_bytes += FLOAT_BYTES * floats
        return values

    def drop(self, token: str) -> None:
        """Drop the segments of a process that is gone."""
        self._attached = {
            identity: attachment
            for identity, attachment in self._attached.items()
            if token_of(identity) != token
        }

    def _find(self, identity: bytes, message: Lookup | Push, floats: int) -> _Attachment:
        attachment = self._attached.get(identity)
        if attachment is None or attachment.number != message.segment:
            raise SegmentError(f"segment {message.segment} of shared memory is not attached")
        # A different number would reach into another request's memory.
        if message.floats != floats:
            raise SegmentError(
                f"a {message.KIND} of {floats} floats names {message.floats} floats of shared memory"
            )
        return attachment
