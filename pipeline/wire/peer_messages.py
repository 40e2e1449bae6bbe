"""Messages between trainers: all-reduces and exchanges in pairs. See `messages`, of which they are.

`generation` and `number` say of which round a message is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..codecs.formats import Payload
from ..types import Float32Array, Int32Array
from .schema import Message, tensor


@dataclass(frozen=True, slots=True)
class PeerReady(Message):
    """Ready for the round; `version` is how many rounds the algorithm's state is of, `heard` whether the
    receiver is known to be ready too, so that nothing is to be answered."""

    KIND: ClassVar[str] = "peer_ready"
    generation: int
    number: int
    version: int
    heard: bool = False


@dataclass(frozen=True, slots=True)
class PeerWait(Message):
    """Alive, and not that far yet; `blocked_by`: whose chunks are missing, int32 [members]."""

    KIND: ClassVar[str] = "peer_wait"
    generation: int
    number: int
    blocked_by: Int32Array = tensor("int32", 1)


@dataclass(frozen=True, slots=True)
class PeerChunk(Message):
    """A chunk of the sender's values, for the member that reduces it.

    `position` counts the round's chunks; `base` is the version of the reference that it is the difference
    from, 0: of none.
    """

    KIND: ClassVar[str] = "peer_chunk"
    generation: int
    number: int
    position: int
    elements: int
    weight: float
    base: int
    payload: Payload = tensor("uint8", 1)


@dataclass(frozen=True, slots=True)
class PeerResult(Message):
    """A reduced chunk; of an exchange, a chunk of the sender's values."""

    KIND: ClassVar[str] = "peer_result"
    generation: int
    number: int
    position: int
    elements: int
    base: int
    payload: Payload = tensor("uint8", 1)


@dataclass(frozen=True, slots=True)
class PeerAsk(Message):
    """Asks for what is missing: positions of chunks and of results, int32 each."""

    KIND: ClassVar[str] = "peer_ask"
    generation: int
    number: int
    chunks: Int32Array = tensor("int32", 1)
    results: Int32Array = tensor("int32", 1)


@dataclass(frozen=True, slots=True)
class PeerResolve(Message):
    """The round cannot end as it should: asks whether the receiver completed it; if not, it never will."""

    KIND: ClassVar[str] = "peer_resolve"
    generation: int
    number: int


@dataclass(frozen=True, slots=True)
class PeerVerdict(Message):
    """Answers `PeerResolve`. `reduced`: whether the sender had reduced its slice, without which nobody can
    have completed the round."""

    KIND: ClassVar[str] = "peer_verdict"
    generation: int
    number: int
    completed: bool
    reduced: bool


@dataclass(frozen=True, slots=True)
class PeerEnded(Message):
    """The sender takes part in no further round of this generation."""

    KIND: ClassVar[str] = "peer_ended"
    generation: int


@dataclass(frozen=True, slots=True)
class PeerStateAsk(Message):
    """Asks for the algorithm's state of `version`, from its chunk `position` on."""

    KIND: ClassVar[str] = "peer_state_ask"
    generation: int
    version: int
    position: int


@dataclass(frozen=True, slots=True)
class PeerState(Message):
    """A chunk of the algorithm's state: `position` counts the chunks of its tensors, one after the other."""

    KIND: ClassVar[str] = "peer_state"
    generation: int
    version: int
    position: int
    name: str
    values: Float32Array = tensor("float32", 1)
