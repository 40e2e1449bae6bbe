"""All messages on the wire, by link.

Messages between trainers are in `peer_messages`, messages with sync nodes in `center_messages`.
`docs/protocol.md` says who sends each message and what answers it. A message is frozen. Its large tensors are
sent without a copy, so the sender must not write to them until ZeroMQ has sent them (see `buffers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ..codecs.formats import Payload
from ..types import BatchId, Float32Array, Int32Array, Uint64Array
from .center_messages import (
    CenterContribution,
    CenterExchange,
    CenterRead,
    CenterSeed,
    CenterValues,
)
from .field_checks import Count, Counts
from .peer_messages import (
    PeerChunk,
    PeerEnded,
    PeerReady,
    PeerRequest,
    PeerResolve,
    PeerResult,
    PeerState,
    PeerStateRequest,
    PeerVerdict,
    PeerWait,
)
from .schema import Message, MessageSchema, schema_of, tensor

# --- control: any node and the coordinator, both ways


@dataclass(frozen=True, slots=True)
class RequestMessage(Message):
    """A request; `body` has the values of its fields.

    The request is sent again until a `ReplyMessage` with the same `number` comes.
    """

    KIND: ClassVar[str] = "request"
    number: Count
    verb: str
    body: list[Any]


@dataclass(frozen=True, slots=True)
class ReplyMessage(Message):
    """The reply to a `RequestMessage`.

    `body` has the values of the reply's fields; if `ok` is false, those of an `ErrorReply`.
    """

    KIND: ClassVar[str] = "reply"
    number: Count
    ok: bool
    body: list[Any]


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """A node's heartbeat with its counts.

    Each heartbeat replaces the last, so it has no number and is not sent again.
    """

    KIND: ClassVar[str] = "heartbeat"
    counts: Counts


@dataclass(frozen=True, slots=True)
class HeartbeatReply(Message):
    """The coordinator's reply to a `Heartbeat`.

    `examples` is the number of examples that all trainers have trained so far. `declared_dead` says why the
    node was declared dead; otherwise it is empty.
    """

    KIND: ClassVar[str] = "heartbeat_reply"
    examples: Count
    declared_dead: str


IMPOSSIBLE: Final = "sent what cannot be"
"""Begins why a node was declared dead that is not wanted back."""


# --- reader and worker


@dataclass(frozen=True, slots=True)
class Credit(Message):
    """Flow control of a worker towards a reader.

    The values are absolute, so a repeat changes nothing.

    Attributes:
        limit: the highest sequence number that may be sent.
        received: all batches up to this number have arrived.
        done: all batches up to this number are trained and confirmed by the coordinator, so the reader may
            drop them.
    """

    KIND: ClassVar[str] = "credit"
    limit: Count
    received: Count
    done: Count


@dataclass(frozen=True, slots=True)
class CreditNoted(Message):
    """A reader's reply to a credit that equals the worker's previous one.

    The reply shows a waiting worker that the reader receives its messages. `sent` is the last sequence number
    that the reader has sent to the worker.
    """

    KIND: ClassVar[str] = "credit_noted"
    sent: Count


@dataclass(frozen=True, slots=True)
class Delivery(Message):
    """One batch for one worker.

    `pass_number` is 0 for training, otherwise the number of an evaluation pass. With `replay` the batch was
    trained before, and changes no dense parameter. `proof` says that the reader was given its span. The
    tensors are those of `data.batch.Batch`.
    """

    KIND: ClassVar[str] = "delivery"
    sequence: Count
    pass_number: Count
    id: BatchId
    labels: Float32Array = tensor("float32", 1)
    dense: Float32Array = tensor("float32", 2)
    rows: Int32Array = tensor("int32", 2)
    weights: Float32Array = tensor("float32", 1, optional=True)
    bag_rows: Int32Array = tensor("int32", 1, optional=True)
    bag_lengths: Int32Array = tensor("int32", 2, optional=True)
    replay: bool = False
    other_labels: Float32Array = tensor("float32", 2, omitted=True)
    item_weights: Float32Array = tensor("float32", 1, omitted=True)
    keys: Uint64Array = tensor("uint64", 2, omitted=True)
    bag_keys: Uint64Array = tensor("uint64", 1, omitted=True)
    groups: Uint64Array = tensor("uint64", 2, omitted=True)
    proof: bytes = b""


# --- worker and embedding node
# Numbers of requests for rows are checked by the node, whose refusal names the request.


@dataclass(frozen=True, slots=True)
class Lookup(Message):
    """A request for the vectors of rows of a shard.

    The last rows of a bank belong to bags, for which the node returns sums.

    Attributes:
        rows: int32 [N], bank after bank; row numbers are those within the bank.
        counts: number of rows or keys in each bank; () if the job has only one bank.
        bag_lengths: int32 [P, B]: number of rows in the bag of each of B examples, for each of the P pieces
            of tables with bags that the node holds, by bank and then by table.
        segment: if not 0, the node may write the vectors to this segment of shared memory.
        offset: where in the segment the vectors begin, in bytes.
        floats: number of floats of the vectors.
        keys: uint64 [K]: hashes of ids in growing tables, bank after bank. A growing table is a bank of its
            own, with keys in place of rows.
        with_state: whether the reply is to have what the trainer needs to add its own pushes to the rows:
            optimizer state, absent keys, and applied pushes. The state is behind the vectors in shared
            memory, and `floats` counts both.
    """

    KIND: ClassVar[str] = "lookup"
    request: int
    rows: Int32Array = tensor("int32", 1)
    counts: tuple[int, ...] = ()
    bag_lengths: Int32Array = tensor("int32", 2, optional=True)
    segment: int = 0
    offset: int = 0
    floats: int = 0
    keys: Uint64Array = tensor("uint64", 1, omitted=True)
    with_state: bool = False


@dataclass(frozen=True, slots=True)
class Vectors(Message):
    """The reply to `Lookup`: the vectors of its rows.

    `values` has the vectors one after the other, with the sums of a bank's bags at the end of the bank. If
    `shared`, the vectors are in shared memory at the place that the lookup named, and `values` is empty.
    `version` is the number of pushes that the shard had applied.

    Attributes:
        applied: of a lookup `with_state`: for each worker of this trainer that has pushed to the shard its
            number, the last push before which all are applied, how many later ones are, and their numbers.
        state: the optimizer state of the single rows, bank after bank, the floats of a row side by side.
            Empty if `shared`.
        absent: int32 [A], ascending: which of all single rows are keys without a row, whose vectors are first
            values.
    """

    KIND: ClassVar[str] = "vectors"
    request: Count
    version: Count
    values: Float32Array = tensor("float32", 1, optional=True)
    shared: bool = False
    applied: tuple[Count, ...] = ()
    state: Float32Array = tensor("float32", 1, omitted=True)
    absent: Int32Array = tensor("int32", 1, omitted=True)


@dataclass(frozen=True, slots=True)
class Push(Message):
    """Gradients of the values in the reply to a lookup.

    `rows`, `counts`, `bag_lengths` and `keys` are those of the lookup. The gradient of a bag's sum applies to
    each of the bag's rows.

    Attributes:
        version: the version in the lookup's reply, from which staleness is computed.
        lr_scale: factor on the learning rate of the rows.
        segment: if not 0, the gradients are in this segment of shared memory, and `gradients` is empty.
        offset: where in the segment the gradients begin, in bytes.
        floats: number of floats of the gradients.
        sequence: the worker's number of its push to this shard, from 1; 0 if it does not count them.
        answered_below: all its pushes with a lower number are answered.
    """

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
    keys: Uint64Array = tensor("uint64", 1, omitted=True)
    sequence: Count = 0
    answered_below: Count = 0


@dataclass(frozen=True, slots=True)
class Attach(Message):
    """Offer of a shared memory segment, which replaces the previous one.

    Attributes:
        segment: number of the segment, from 1.
        pid, descriptor: the process that created the memory, and the memory's descriptor in that process.
        size_bytes: bytes of the segment.
        boot: an id of the kernel.
        token: the first bytes of the memory, in hexadecimal.
    """

    KIND: ClassVar[str] = "attach"
    segment: Count
    pid: Count
    descriptor: Count
    size_bytes: Count
    boot: str
    token: str


@dataclass(frozen=True, slots=True)
class Attached(Message):
    """The reply to `Attach`: whether the node uses the memory, or `why` not."""

    KIND: ClassVar[str] = "attached"
    segment: Count
    shared: bool
    why: str


@dataclass(frozen=True, slots=True)
class CodedVectors(Message):
    """`Vectors` with `elements` values, encoded with the job's codec for vectors."""

    KIND: ClassVar[str] = "coded_vectors"
    request: Count
    version: Count
    elements: Count
    payload: Payload = tensor("uint8", 1)
    applied: tuple[Count, ...] = ()
    state: Float32Array = tensor("float32", 1, omitted=True)
    absent: Int32Array = tensor("int32", 1, omitted=True)


@dataclass(frozen=True, slots=True)
class CodedPush(Message):
    """`Push` with gradients encoded with the job's codec for gradients."""

    KIND: ClassVar[str] = "coded_push"
    request: int
    id: BatchId
    version: int
    rows: Int32Array = tensor("int32", 1)
    payload: Payload = tensor("uint8", 1)
    lr_scale: float = 1.0
    counts: tuple[int, ...] = ()
    bag_lengths: Int32Array = tensor("int32", 2, optional=True)
    keys: Uint64Array = tensor("uint64", 1, omitted=True)
    sequence: Count = 0
    answered_below: Count = 0


@dataclass(frozen=True, slots=True)
class Pushed(Message):
    """The reply to `Push`.

    `repeated` says that the shard had applied the batch before, so nothing changed.
    """

    KIND: ClassVar[str] = "pushed"
    request: Count
    repeated: bool


# --- any link


@dataclass(frozen=True, slots=True)
class Failure(Message):
    """The reply to a message that is invalid or failed.

    `request` is 0 if the message's number could not be read.
    """

    KIND: ClassVar[str] = "failure"
    request: Count
    what: str


MESSAGES: dict[str, MessageSchema] = {
    cls.KIND: schema_of(cls)
    for cls in (
        RequestMessage,
        ReplyMessage,
        Heartbeat,
        HeartbeatReply,
        Credit,
        CreditNoted,
        Delivery,
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
        CenterContribution,
        CenterRead,
        CenterValues,
        PeerReady,
        PeerWait,
        PeerChunk,
        PeerResult,
        PeerRequest,
        PeerResolve,
        PeerVerdict,
        PeerEnded,
        PeerStateRequest,
        PeerState,
        Failure,
    )
}
