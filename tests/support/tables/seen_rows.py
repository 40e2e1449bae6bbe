"""What the trainers of the test's own process make of rows in flight."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.worker.embedding_client import EmbeddingClient
from shadowsync.pipeline.embedding.in_flight.rows_in_flight import RowsInFlight


class SeenRows:
    """No fault, but the rows that steps are made with are looked at.

    Attributes:
        trainers: each trainer's.
        added: by how many pushes in all they were made exact.
        most: the most pushes that a trainer had at the time of a step.
        largest: the largest absolute value in a row.
        broken: number of answers with a value that is no number, or infinite.
    """

    def __init__(self) -> None:
        self.trainers: list[RowsInFlight] = []
        self.added = self.most = self.broken = 0
        self.largest = 0.0
        self._lock = threading.Lock()

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        complete = EmbeddingClient.complete

        def seen(client: EmbeddingClient[Any], batch: Any) -> None:
            before = sum(batch.versions)
            complete(client, batch)
            if client._rows is not None:
                self._record(client._rows, batch, sum(batch.versions) - before)

        patch.setattr(EmbeddingClient, "complete", seen)

    @property
    def left(self) -> int:
        """Pushes that trainers still keep."""
        return sum(map(len, self.trainers))

    def _record(self, rows: RowsInFlight, batch: Any, added: int) -> None:
        largest = [float(np.abs(values).max(initial=0)) for values in batch.replies]
        with self._lock:
            if rows not in self.trainers:
                self.trainers.append(rows)
            self.added += added
            self.most = max(self.most, len(rows))
            self.broken += not np.isfinite(largest).all()
            self.largest = max(self.largest, *largest)
