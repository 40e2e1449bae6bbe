"""The memory that workers of its machine share with an embedding node."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ...pipeline.types import Float32Array
from ...pipeline.wire.messages import Attach, Attached, Lookup, Push
from ...pipeline.wire.segment import FLOAT_BYTES, OpenedSegment, SegmentError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Shared:
    """A worker's segment, its number, and the last lookup that was answered into it."""

    number: int
    segment: OpenedSegment
    request: int = 0


class WorkerSegments:
    """By worker, one segment each. Owned by the thread of the socket.

    Args:
        allowed: whether any is to be shared.

    Attributes:
        bytes: of vectors and gradients that went through them.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._of: dict[bytes, _Shared] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._of)

    def attach(self, identity: bytes, offer: Attach) -> Attached:
        """Opens what a worker offers, in the place of what it offered before; a repeat changes nothing."""
        if not self._allowed:
            return Attached(offer.segment, shared=False, why="network.shared_memory is false at the node")
        known = self._of.get(identity)
        if known is not None and (known.number, known.segment.token) == (offer.segment, offer.token):
            return Attached(offer.segment, shared=True, why="")
        self._of.pop(identity, None)
        try:
            opened = OpenedSegment(
                pid=offer.pid,
                descriptor=offer.descriptor,
                size_bytes=offer.size_bytes,
                boot=offer.boot,
                token=offer.token,
            )
        except SegmentError as error:
            log.debug("shares no memory with %r: %s", identity, error)
            return Attached(offer.segment, shared=False, why=str(error))
        self._of[identity] = _Shared(offer.segment, opened)
        log.info(
            "shares %d bytes of memory with worker %s", opened.size_bytes, identity.decode("ascii", "replace")
        )
        return Attached(offer.segment, shared=True, why="")

    def target(self, identity: bytes, lookup: Lookup, floats: int) -> Float32Array | None:
        """Where the vectors are to be written, float32 [floats]; None where they go over the socket.

        A lookup that comes a second time has its answer over the socket: its worker may use the place for
        something else by now.

        Raises:
            SegmentError: the place is none of this worker's, or is for another number of floats.
        """
        if not lookup.segment:
            return None
        shared = self._find(identity, lookup, floats)
        target = shared.segment.floats(lookup.offset, floats)
        if lookup.request <= shared.request:
            return None
        shared.request = lookup.request
        return target

    def gradients(self, identity: bytes, push: Push, floats: int) -> Float32Array:
        """The gradients of a push that has a `segment`, float32 [floats], where they lie.

        Raises:
            SegmentError: the place is none of this worker's, or has another number of floats.
        """
        values = self._find(identity, push, floats).segment.floats(push.offset, floats)
        self.bytes += FLOAT_BYTES * floats
        return values

    def drop(self, token: str) -> None:
        """A process is gone, its workers with it."""
        gone = f"{token}/".encode()
        self._of = {identity: one for identity, one in self._of.items() if not identity.startswith(gone)}

    def _find(self, identity: bytes, message: Lookup | Push, floats: int) -> _Shared:
        shared = self._of.get(identity)
        if shared is None or shared.number != message.segment:
            raise SegmentError(f"segment {message.segment} of shared memory is not attached")
        # More would be those of another request.
        if message.floats != floats:
            raise SegmentError(f"{message.floats} floats of shared memory for a {message.KIND} of {floats}")
        return shared
