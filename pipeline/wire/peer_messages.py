"""Messages between trainers, of all-reduces.

`generation` and `number` identify the round of a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..codecs.formats import Payload
from ..types import Float32Array, Int32Array
from .field_checks import Bounds, Count, Size
from .schema import Message, tensor

# Of an algorithm's state; -1 for none.
Version = Annotated[int, Bounds(-1)]


@dataclass(frozen=True, slots=True)
class PeerReady(Message):
    """The sender is ready for the round.

    `version` is the number of rounds that the algorithm's state contains. `no_reply` says that the sender
    knows that the receiver is ready too, so no reply is needed.
    """

    KIND: ClassVar[str] = "peer_ready"
    generation: Count
    number: Count
    version: Version
    no_reply: bool = False


@dataclass(frozen=True, slots=True)
class PeerWait(Message):
    """The sender is alive, but not that far yet.

    `blocked_by` is int32 [members]: the members whose chunks the sender lacks.
    """

    KIND: ClassVar[str] = "peer_wait"
    generation: Count
    number: Count
    blocked_by: Int32Array = tensor("int32", 1)


@dataclass(frozen=True, slots=True)
class PeerChunk(Message):
    """A chunk of the sender's values, for the member that reduces it.

    `position` is the chunk's number in the round. If `base` is 0, the payload has the values themselves;
    otherwise it has their difference from the reference of version `base`.
    """

    KIND: ClassVar[str] = "peer_chunk"
    generation: Count
    number: Count
    position: Count
    elements: Count
    weight: Size
    base: Count
    payload: Payload = tensor("uint8", 1)


@dataclass(frozen=True, slots=True)
class PeerResult(Message):
    """A reduced chunk."""

    KIND: ClassVar[str] = "peer_result"
    generation: Count
    number: Count
    position: Count
    elements: Count
    base: Count
    payload: Payload = tensor("uint8", 1)


@dataclass(frozen=True, slots=True)
class PeerRequest(Message):
    """A request for missing chunks and results, by their positions, int32 each."""

    KIND: ClassVar[str] = "peer_request"
    generation: Count
    number: Count
    chunks: Int32Array = tensor("int32", 1)
    results: Int32Array = tensor("int32", 1)


@dataclass(frozen=True, slots=True)
class PeerResolve(Message):
    """A question whether the receiver completed the round, which cannot end normally.

    A receiver that has not completed the round when it gets this message never will.
    """

    KIND: ClassVar[str] = "peer_resolve"
    generation: Count
    number: Count


@dataclass(frozen=True, slots=True)
class PeerVerdict(Message):
    """The reply to `PeerResolve`.

    `reduced` says whether the sender had reduced its slice; if not, nobody can have completed the round.
    """

    KIND: ClassVar[str] = "peer_verdict"
    generation: Count
    number: Count
    completed: bool
    reduced: bool


@dataclass(frozen=True, slots=True)
class PeerEnded(Message):
    """Notice that the sender takes part in no further round of this generation."""

    KIND: ClassVar[str] = "peer_ended"
    generation: Count


@dataclass(frozen=True, slots=True)
class PeerStateRequest(Message):
    """A request for the chunks from `position` on of the algorithm's state of `version`."""

    KIND: ClassVar[str] = "peer_state_request"
    generation: Count
    version: Version
    position: Count


@dataclass(frozen=True, slots=True)
class PeerState(Message):
    """A chunk of the algorithm's state.

    `position` counts chunks over all tensors of the state.
    """

    KIND: ClassVar[str] = "peer_state"
    generation: Count
    version: Version
    position: Count
    name: str
    values: Float32Array = tensor("float32", 1)
