"""Every message on the wire, by link; those between trainers are in `peer_messages`.

`docs/protocol.md` says who sends which and what answers it. A message is frozen once built; its
tensors are sent without a copy where they are large, so the sender must not write into them until ZeroMQ is
done (see `pool`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..codecs.formats import Payload
from ..types import BatchId, Float32Array, Int32Array
from .field_checks import Counts
from .peer_messages import (
    PeerAsk,
    PeerChunk,
    PeerEnded,
    PeerReady,
    PeerResolve,
    PeerResult,
    PeerState,
    PeerStateAsk,
    PeerVerdict,
    PeerWait,
)
from .schema import Message, MessageSchema, schema_of, tensor

# --- control: any node and the coordinator, both ways


@dataclass(frozen=True, slots=True)
class Ask(Message):
    """A request, the values of its fields; sent again until an `Answer` with the same `number` comes."""

    KIND: ClassVar[str] = "ask"
    number: int
    verb: str
    body: list[Any]


@dataclass(frozen=True, slots=True)
class Answer(Message):
    """The answer to an `Ask`: the values of its reply, or with `ok` false those of an `ErrorReply`."""

    KIND: ClassVar[str] = "answer"
    number: int
    ok: bool
    body: list[Any]


@dataclass(frozen=True, slots=True)
class Pulse(Message):
    """A node's heartbeat with its counts. Each one replaces the last, so it has no number and is not sent
    again."""

    KIND: ClassVar[str] = "pulse"
    counts: Counts


@dataclass(frozen=True, slots=True)
class PulseReply(Message):
    """The coordinator's reply to a `Pulse`: the examples trained so far over all trainers; to a node that was
    declared dead also why."""

    KIND: ClassVar[str] = "pulse_reply"
    examples: int
    declared_dead: str


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
    """One batch for one worker. `pass_number` is 0 for training, else the evaluation pass that it is of.

    The tensors are those of `data.batch.Batch`.
    """

    KIND: ClassVar[str] = "delivery"
    sequence: int
    pass_number: int
    id: BatchId
    labels: Float32Array = tensor("float32", 1)
    dense: Float32Array = tensor("float32", 2)
    rows: Int32Array = tensor("int32", 2)
    weights: Float32Array = tensor("float32", 1, optional=True)
    bag_rows: Int32Array = tensor("int32", 1, optional=True)
    bag_lengths: Int32Array = tensor("int32", 2, optional=True)


# --- trainer and worker process, both ways


@dataclass(frozen=True, slots=True)
class WorkerMessage(Message):
    """One thing that either tells the other, by its verb. Both are on one machine and live and die together,
    so nothing is sent again."""

    KIND: ClassVar[str] = "worker_note"
    verb: str
    body: dict[str, Any]


# --- worker and embedding node


@dataclass(frozen=True, slots=True)
class Lookup(Message):
    """Asks for the vectors of a shard's rows, int32 [N], each local to its bank, bank after bank.

    `counts` says how many are of each bank; () where the job has one, whose they all are. The last rows of a
    bank are those of bags, of which the node answers the sums: `bag_lengths`, int32 [P, B], says how many of
    the rows are of the bag of each of B examples, for each of the P pieces of tables with bags that the node
    keeps, by bank and then by table. Where `segment` is not 0, the vectors, which are `floats`, may be
    written into that segment of shared memory, from `offset` on.
    """

    KIND: ClassVar[str] = "lookup"
    request: int
    rows: Int32Array = tensor("int32", 1)
    counts: tuple[int, ...] = ()
    bag_lengths: Int32Array = tensor("int32", 2, optional=True)
    segment: int = 0
    offset: int = 0
    floats: int = 0


@dataclass(frozen=True, slots=True)
class Vectors(Message):
    """Answers `Lookup`: the floats of its rows, one after the other, at the end of each bank the sums of its
    bags; and how many pushes the shard had applied by then. With `shared` the floats lie where the lookup
    said, and `values` is empty."""

    KIND: ClassVar[str] = "vectors"
    request: int
    version: int
    values: Float32Array = tensor("float32", 1, optional=True)
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Push(Message):
    """Gradients for what the answer to a lookup of these rows has; `rows`, `counts` and `bag_lengths` as in
    `Lookup`. That of a bag's sum is that of each of its rows. `version` is that of the lookup, or of
    the oldest copy of a row that was used, for the staleness; the rate of the rows' optimizer is taken
    `lr_scale` times. Where `segment` is not 0, the gradients, which are `floats`, lie in that segment of
    shared memory, from `offset` on, and `gradients` is empty."""

    KIND: ClassVar[str] = "push"
    request: int
    id: BatchId
    version: int
    rows: Int32Array = tensor("int32", 1)
    gradients: Float32Array = tensor("float32", 1)
    lr_scale: float = 1.0
    counts: tuple[int, ...] = ()
    bag_lengths: Int32Array = tensor("int32", 2, optional=True)
    segment: int = 0
    offset: int = 0
    floats: int = 0


@dataclass(frozen=True, slots=True)
class Attach(Message):
    """Offers memory of the worker's process `pid`, its `descriptor`, of `size_bytes`, for vectors and
    gradients, and numbers it: `segment`, counting from 1. It takes the place of the one before. `boot` names
    the kernel, `token` is what its first bytes are, as hexadecimal digits."""

    KIND: ClassVar[str] = "attach"
    segment: int
    pid: int
    descriptor: int
    size_bytes: int
    boot: str
    token: str


@dataclass(frozen=True, slots=True)
class Attached(Message):
    """Answers `Attach`: whether the node shares that memory from now on, and if not, `why`."""

    KIND: ClassVar[str] = "attached"
    segment: int
    shared: bool
    why: str


@dataclass(frozen=True, slots=True)
class CodedVectors(Message):
    """`Vectors` of so many `elements`, by the codec that the job has for them."""

    KIND: ClassVar[str] = "coded_vectors"
    request: int
    version: int
    elements: int
    payload: Payload = tensor("uint8", 1)


@dataclass(frozen=True, slots=True)
class CodedPush(Message):
    """`Push` with gradients by the codec that the job has for them."""

    KIND: ClassVar[str] = "coded_push"
    request: int
    id: BatchId
    version: int
    rows: Int32Array = tensor("int32", 1)
    payload: Payload = tensor("uint8", 1)
    lr_scale: float = 1.0
    counts: tuple[int, ...] = ()
    bag_lengths: Int32Array = tensor("int32", 2, optional=True)


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
    """A chunk of a replica's slice, for one exchange with the center. All chunks of it share `request`.

    `reference` is 0 for `elements` float32 as they are. Else the payload is, by the codec of this way, how
    far they are from the values that the exchange of that number had.
    """

    KIND: ClassVar[str] = "center_exchange"
    request: int
    start: int
    elements: int
    reference: int
    payload: Payload = tensor("uint8", 1)


@dataclass(frozen=True, slots=True)
class CenterRead(Message):
    """Asks for the center's elements `start` to `stop`, as they are now."""

    KIND: ClassVar[str] = "center_read"
    request: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class CenterValues(Message):
    """Answers the three above, chunk by chunk: an exchange's delta, or values read; empty for a seed.

    With `coded` the payload is by the codec of this way, else it is `elements` float32.
    """

    KIND: ClassVar[str] = "center_values"
    request: int
    start: int
    elements: int
    coded: bool
    payload: Payload = tensor("uint8", 1)


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
        PulseReply,
        Credit,
        Delivery,
        WorkerMessage,
        Lookup,
        Vectors,
        Push,
        Attach,
        Attached,
        CodedVectors,
        CodedPush,
        Pushed,
        CenterSeed,
        CenterExchange,
        CenterRead,
        CenterValues,
        PeerReady,
        PeerWait,
        PeerChunk,
        PeerResult,
        PeerAsk,
        PeerResolve,
        PeerVerdict,
        PeerEnded,
        PeerStateAsk,
        PeerState,
        Failure,
    )
}
