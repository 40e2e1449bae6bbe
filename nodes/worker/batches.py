"""A batch in flight in a worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.types import Float32Array
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
