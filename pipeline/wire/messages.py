"""Every message on the wire, by link. `docs/protocol.md` says who sends which and what answers it.

A message is frozen once built; its tensors are sent without a copy where they are large, so the sender must
not write into them until ZeroMQ is done (see `pool`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..data.batch import BatchId, Float32Array, Int32Array
from .schema import Message, MessageSchema, schema_of, tensor

# --- control: any node and the coordinator, both ways


@dataclass(frozen=True, slots=True)
class Ask(Message):
    """A question or command; sent again until an `Answer` with the same `number` comes."""

    KIND: ClassVar[str] = "ask"
    number: int
    verb: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer(Message):
    """The answer to an `Ask`; with `ok` false the body has `what` and `remedy`."""

    KIND: ClassVar[str] = "answer"
    number: int
    ok: bool
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pulse(Message):
    """A heartbeat. Each one replaces the last, so it has no number and is not sent again."""

    KIND: ClassVar[str] = "pulse"
    body: dict[str, Any]


# --- reader and worker


@dataclass(frozen=True, slots=True)
class Credit(Message):
    """A worker's standing with a reader, absolute, so that sending it twice changes nothing.

    `limit`: the highest sequence that may be sent; `received`: all up to it have arrived; `done`: all up to
    it are trained and confirmed by the coordinator, so that the reader may forget them.
    """

    KIND: ClassVar[str] = "credit"
    limit: int
    received: int
    done: int


@dataclass(frozen=True, slots=True)
class Delivery(Message):
    """One batch for one worker. `pass_number` is 0 for training, else the evaluation pass that it is of."""

    KIND: ClassVar[str] = "delivery"
    sequence: int
    pass_number: int
    id: BatchId
    labels: Float32Array = tensor("float32", 1)
    dense: Float32Array = tensor("float32", 2)
    rows: Int32Array = tensor("int32", 2)


# --- worker and embedding node


@dataclass(frozen=True, slots=True)
class Lookup(Message):
    """Asks for the vectors of a shard's local rows, int32 [N]."""

    KIND: ClassVar[str] = "lookup"
    request: int
    rows: Int32Array = tensor("int32", 1)


@dataclass(frozen=True, slots=True)
class Vectors(Message):
    """Answers `Lookup`: float32 [N, dim], and how many pushes the shard had applied by then."""

    KIND: ClassVar[str] = "vectors"
    request: int
    version: int
    values: Float32Array = tensor("float32", 2)


@dataclass(frozen=True, slots=True)
class Push(Message):
    """Gradients for a shard's local rows. `version` is that of the lookup, for the staleness."""

    KIND: ClassVar[str] = "push"
    request: int
    id: BatchId
    version: int
    rows: Int32Array = tensor("int32", 1)
    gradients: Float32Array = tensor("float32", 2)


@dataclass(frozen=True, slots=True)
class Pushed(Message):
    """Answers `Push`; `repeated` if the shard had applied this batch before, and so changed nothing."""

    KIND: ClassVar[str] = "pushed"
    request: int
    repeated: bool


# --- trainer and sync node


@dataclass(frozen=True, slots=True)
class CenterSeed(Message):
    """A chunk of a center's first value, for the slice `slice_start` to `slice_stop` of the model.

    `start` is the place of the chunk's first element in the model.
    """

    KIND: ClassVar[str] = "center_seed"
    request: int
    slice_start: int
    slice_stop: int
    start: int
    values: Float32Array = tensor("float32", 1)


@dataclass(frozen=True, slots=True)
class CenterExchange(Message):
    """A chunk of a replica's slice, for one exchange with the center. All chunks of it share `request`."""

    KIND: ClassVar[str] = "center_exchange"
    request: int
    start: int
    values: Float32Array = tensor("float32", 1)


@dataclass(frozen=True, slots=True)
class CenterRead(Message):
    """Asks for the center's elements `start` to `stop`, as they are now."""

    KIND: ClassVar[str] = "center_read"
    request: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class CenterValues(Message):
    """Answers the three above, chunk by chunk: an exchange's delta, or values read; empty for a seed."""

    KIND: ClassVar[str] = "center_values"
    request: int
    start: int
    values: Float32Array = tensor("float32", 1)


# --- any link


@dataclass(frozen=True, slots=True)
class Failure(Message):
    """Answers what could not be understood or done. `request` is 0 when not even that could be read."""

    KIND: ClassVar[str] = "failure"
    request: int
    what: str


MESSAGES: dict[str, MessageSchema] = {
    cls.KIND: schema_of(cls)
    for cls in (
        Ask,
        Answer,
        Pulse,
        Credit,
        Delivery,
        Lookup,
        Vectors,
        Push,
        Pushed,
        CenterSeed,
        CenterExchange,
        CenterRead,
        CenterValues,
        Failure,
    )
}
