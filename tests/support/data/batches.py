"""Small batches, told apart by their id."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.types import BatchId

_WHOLE = st.integers(0, 2**63 - 1)
# All that may travel.
BATCH_IDS = st.builds(BatchId, _WHOLE, _WHOLE, st.integers(0, 2**63 - 2), _WHOLE)


def batch_id(number: int, *, epoch: int = 0, span: int = 0, seed: int = 1) -> BatchId:
    """The id of a batch of one span."""
    return BatchId(epoch, span, number, seed)


def make_batch(number: int, examples: int = 2, *, epoch: int = 0, span: int = 0) -> Batch:
    """A batch of `examples`, two numbers and three tables wide, filled with its number."""
    return Batch(
        id=batch_id(number, epoch=epoch, span=span),
        labels=np.full(examples, number % 2, np.float32),
        dense=np.full((examples, 2), number, np.float32),
        rows=np.full((3, examples), number, np.int32),
    )
