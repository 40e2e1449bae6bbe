"""A batch in flight in a worker, and its acknowledgement."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.types import BatchId, Float32Array
from ...pipeline.wire.messages import Delivery
from ..embedding.shared_memory import Lease
from .reader_client import ReaderClient


@dataclass(slots=True)
class InFlightBatch:
    """A delivery in flight in a worker: looked up, computed, pushed, acknowledged.

    `reader` is the client of the reader that delivered it.
    """

    reader: ReaderClient
    delivery: Delivery
    requests: list[LookupPlan] = field(default_factory=list)
    answers: list[Float32Array] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    targets: list[Lease | None] = field(default_factory=list)
    unanswered: int = 0
    unpushed: int = 0
    loss: float = 0.0
    lr_scale: float = 1.0
    stranded: bool = False

    @property
    def training(self) -> bool:
        """Whether the batch is to be trained, not scored."""
        return self.delivery.pass_number == 0


@dataclass(frozen=True, slots=True)
class BatchAck:
    """Acknowledgement of a batch: trained, or left out.

    A trained batch is acknowledged once every embedding node has answered its push.

    Attributes:
        left_out: why it was not trained: nothing of it went to the replica or to an embedding node, and its
            sums are 0. Empty for a batch that is trained.
        loss_sum: log loss before the step, in nats, times the sample weights, over the examples.
        positives: the sum of labels times sample weights.
        weight: the sum of the sample weights; `examples` where the job has none.
        finished_at: of the machine's monotonic clock, which its processes share.
    """

    worker: int
    reader: str
    sequence: int
    id: BatchId
    examples: int
    loss_sum: float
    positives: float
    weight: float
    finished_at: float
    left_out: str = ""

    @classmethod
    def of(cls, worker: int, reader: str, delivery: Delivery, loss: float) -> BatchAck:
        """Acknowledge a batch that is trained now; `loss` is its mean log loss."""
        labels, weights = delivery.labels, delivery.weights
        weighted = len(weights) > 0
        weight = float(weights.sum()) if weighted else float(len(labels))
        return cls(
            worker=worker,
            reader=reader,
            sequence=delivery.sequence,
            id=delivery.id,
            examples=len(labels),
            loss_sum=loss * weight,
            positives=float((labels * weights).sum() if weighted else labels.sum()),
            weight=weight,
            finished_at=time.monotonic(),
        )

    @classmethod
    def leaving_out(cls, worker: int, reader: str, delivery: Delivery, why: str) -> BatchAck:
        """Acknowledge a batch that is left out now."""
        batch_id, examples, now = delivery.id, len(delivery.labels), time.monotonic()
        return cls(worker, reader, delivery.sequence, batch_id, examples, 0.0, 0.0, 0.0, now, why)

    def to_wire(self) -> list[Any]:
        """Return the record that a worker process sends.

        The trainer knows which worker it is.
        """
        return [
            self.reader,
            self.sequence,
            list(self.id),
            self.examples,
            self.loss_sum,
            self.positives,
            self.weight,
            self.finished_at,
            self.left_out,
        ]

    @classmethod
    def from_wire(cls, worker: int, record: Sequence[Any]) -> BatchAck:
        """Read a record of `to_wire`."""
        reader, sequence, batch_id, *figures = record
        return cls(worker, reader, sequence, BatchId.from_wire(batch_id), *figures)
