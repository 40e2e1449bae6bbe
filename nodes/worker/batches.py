"""A worker's batches: in flight, acknowledged, and pushed but not confirmed by the coordinator."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...pipeline.embedding.in_flight.rows_in_flight import Answer
from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.metrics.quality import QualitySums
from ...pipeline.types import BatchId, Float32Array
from ...pipeline.wire.control.messages import DeliveryKey
from ...pipeline.wire.messages import Delivery
from ..embedding.shared_memory import Lease
from .reader_client import ReaderClient


@dataclass(slots=True, kw_only=True)
class RowRequests(ABC):
    """The requests of one batch to all embedding nodes, and their answers.

    Attributes:
        answers: what exact rows need of the answers.
        ticket: see `RowsInFlight`; 0 for none.
    """

    requests: list[LookupPlan] = field(default_factory=list)
    replies: list[Float32Array] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    ticket: int = 0
    versions: list[int] = field(default_factory=list)
    targets: list[Lease | None] = field(default_factory=list)
    pending_lookups: int = 0
    unpushed: int = 0
    lr_scale: float = 1.0
    stranded: bool = False

    @property
    @abstractmethod
    def id(self) -> BatchId:
        """The identity of its push, by which nodes recognize a repeat."""

    @property
    def is_replay(self) -> bool:
        """Whether its push may have been applied before, as that of another delivery."""
        return False


@dataclass(slots=True)
class InFlightBatch(RowRequests):
    """A delivery in flight in a worker, from lookup to acknowledgement.

    `reader` is the client of the reader that delivered it.
    """

    reader: ReaderClient
    delivery: Delivery
    loss: float = 0.0
    other_losses: tuple[float, ...] = ()

    @property
    def id(self) -> BatchId:
        return self.delivery.id

    @property
    def is_replay(self) -> bool:
        return self.delivery.replay

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean log loss of each label, once the step is finished."""
        return self.loss, *self.other_losses

    @property
    def training(self) -> bool:
        """Whether the batch is to be trained, not scored."""
        return self.delivery.pass_number == 0


@dataclass(frozen=True, slots=True)
class BatchAck:
    """Acknowledgement of a batch: trained, or left out.

    A trained batch is acknowledged once every embedding node has answered its push.

    Attributes:
        worker: the worker's place in its trainer.
        left_out: why the batch was left out; "" for a trained batch. A batch that is left out changes neither
            the replica nor an embedding node, and its sums are 0.
        loss_sum: sum over the examples of the log loss before the step, in nats, times the sample weight.
        positives: sum of labels times sample weights.
        weight: sum of the sample weights; `examples` if the job has none.
        finished_at: time by the machine's monotonic clock.
        replay: whether the batch was trained before.
        others: sums of losses and of positives of each further label.
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
    replay: bool = False
    others: tuple[tuple[float, float], ...] = ()

    @property
    def delivery(self) -> DeliveryKey:
        return self.reader, self.worker, self.sequence

    @classmethod
    def of(cls, worker: int, reader: str, delivery: Delivery, losses: Sequence[float]) -> BatchAck:
        """Build the acknowledgement of a trained batch.

        `losses` are the mean losses of its labels.
        """
        weights = delivery.weights
        weighted = len(weights) > 0
        weight = float(weights.sum()) if weighted else float(len(delivery.labels))

        def sums(loss: float, labels: Float32Array) -> tuple[float, float]:
            return loss * weight, float((labels * weights).sum() if weighted else labels.sum())

        loss_sum, positives = sums(losses[0], delivery.labels)
        return cls(
            worker=worker,
            reader=reader,
            sequence=delivery.sequence,
            id=delivery.id,
            examples=len(delivery.labels),
            loss_sum=loss_sum,
            positives=positives,
            weight=weight,
            finished_at=time.monotonic(),
            replay=delivery.replay,
            others=tuple(map(sums, losses[1:], delivery.other_labels)),
        )

    @classmethod
    def leaving_out(cls, worker: int, reader: str, delivery: Delivery, why: str) -> BatchAck:
        """Acknowledge a batch that is left out now."""
        batch_id, examples, now = delivery.id, len(delivery.labels), time.monotonic()
        return cls(
            worker, reader, delivery.sequence, batch_id, examples, 0.0, 0.0, 0.0, now, why, delivery.replay
        )


@dataclass(frozen=True, slots=True)
class DrainResult:
    """A worker's report once it has stopped training.

    Attributes:
        in_flight: number of examples that arrived but were not trained.
        progressive: sums over the batches that it scored before their step.
    """

    in_flight: int
    progressive: QualitySums


Delivered = tuple[str, int]
"""A reader's name, and the sequence of one of its deliveries."""


class UnconfirmedBatches:
    """Pushed batches without confirmation; owned by the worker's thread."""

    def __init__(self) -> None:
        self._batches: set[Delivered] = set()
        self._waiting: list[tuple[set[Delivered], Callable[[], object]]] = []

    def pushed(self, reader: str, sequence: int) -> None:
        self._batches.add((reader, sequence))

    def confirmed(self, reader: str, sequence: int) -> None:
        """Record that the coordinator has recorded a batch, as trained or left out."""
        self._batches.discard((reader, sequence))

    def when_confirmed(self, reply: Callable[[], object]) -> None:
        """Have `call_due_replies` call `reply` once everything pushed so far is confirmed."""
        self._waiting.append((set(self._batches), reply))

    def call_due_replies(self) -> None:
        """Call each reply, once, whose batches are all confirmed. Call it regularly."""
        for batches, reply in tuple(self._waiting):
            if not batches & self._batches:
                self._waiting.remove((batches, reply))
                reply()
