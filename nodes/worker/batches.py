"""A worker's batches: in flight, and pushed but not confirmed by the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.embedding.lookup.router import ShardRouter
from ...pipeline.errors import ProtocolError
from ...pipeline.types import BatchId, Float32Array
from ...pipeline.wire.messages import Delivery
from ..embedding.shared_memory import Lease
from .delivery_check import REMEDY
from .reader_client import ReaderClient


@dataclass(slots=True, kw_only=True)
class RowRequests:
    """The requests of one batch to all embedding nodes, and their answers."""

    requests: list[LookupPlan] = field(default_factory=list)
    replies: list[Float32Array] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    targets: list[Lease | None] = field(default_factory=list)
    pending_lookups: int = 0
    unpushed: int = 0
    lr_scale: float = 1.0
    stranded: bool = False

    @property
    def id(self) -> BatchId:
        """The identity of its push, by which nodes recognize a repeat."""
        raise NotImplementedError


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
        """See `RowRequests`."""
        return self.delivery.id

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean log loss of each label, once the step is finished."""
        return self.loss, *self.other_losses

    @property
    def training(self) -> bool:
        """Whether the batch is to be trained, not scored."""
        return self.delivery.pass_number == 0

    def plan_lookups(self, router: ShardRouter) -> list[LookupPlan]:
        """Plan the lookups of its rows; raises ProtocolError if it does not fit."""
        delivery = self.delivery
        try:
            return router.requests_of(delivery)
        except ValueError as error:
            raise ProtocolError(
                f"{self.reader.name} delivered batch {tuple(delivery.id)}, but {error}",
                where="reader",
                remedy=REMEDY,
            ) from error


Delivered = tuple[str, int]
"""A reader's name, and the sequence of one of its deliveries."""


class UnconfirmedBatches:
    """Pushed batches without confirmation; owned by the worker's thread."""

    def __init__(self) -> None:
        self._batches: set[Delivered] = set()
        self._waiting: list[tuple[set[Delivered], Callable[[], object]]] = []

    def pushed(self, reader: str, sequence: int) -> None:
        """Record that a batch is pushed."""
        self._batches.add((reader, sequence))

    def confirmed(self, reader: str, sequence: int) -> None:
        """Record that the coordinator has recorded a batch, as trained or left out."""
        self._batches.discard((reader, sequence))

    def settle(self, reply: Callable[[], object]) -> None:
        """Have `look` call `reply` once everything pushed so far is confirmed."""
        self._waiting.append((set(self._batches), reply))

    def look(self) -> None:
        """Call the replies that are due. Call it regularly."""
        for batches, reply in tuple(self._waiting):
            if not batches & self._batches:
                self._waiting.remove((batches, reply))
                reply()
