"""A batch in flight, its lookup plan, and the vectors that answer it."""

from __future__ import annotations

import numpy as np
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.reader_client import ReaderClient
from shadowsync.pipeline.embedding.lookup.request import (
    NO_BAG_LENGTHS,
    NO_KEYS,
    BankLookup,
    BankShare,
    LookupPlan,
)
from shadowsync.pipeline.wire.messages import Delivery, Vectors

from ..coordinator.recording_connection import RecordedConnection
from ..data.batches import batch_id

DIM = 2


def in_flight(number: int = 0, pass_number: int = 0) -> InFlightBatch:
    nothing = np.zeros((1, 1), np.float32)
    delivery = Delivery(
        number + 1, pass_number, batch_id(number), nothing[0], nothing, np.zeros((1, 1), np.int32)
    )
    return InFlightBatch(ReaderClient("reader-0", RecordedConnection().connection, 4), delivery)


def plan(node: int, *rows: int) -> LookupPlan:
    own = np.array(rows, np.int32)
    bank = BankLookup(BankShare(DIM, len(rows), 0, 0, 0), None, (), (), (), ())
    return LookupPlan(node, own, 1, (bank,), {}, NO_BAG_LENGTHS, NO_KEYS)


def vectors(request: int, *values: float, version: int = 0) -> Vectors:
    return Vectors(request, version, np.repeat(np.array(values, np.float32), DIM))
