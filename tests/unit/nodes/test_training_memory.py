"""What a batch leaves behind in reader, trainer and embedding node: nothing."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest
from shadowsync.nodes.trained import Trained
from shadowsync.pipeline.config.load import job_of_tree
from shadowsync.tests.support.in_one_process import Training, training_in_one_process

WARM_UP, BATCHES = 200, 500
MOST_BYTES = 8.0
JOB = {
    "data": {"format": "parquet", "path": ["x"], "dense_features": 3, "categorical_features": 4},
    "model": {"embedding_dim": 2, "table_rows": 11, "bottom": [6], "top": [5]},
    "trainer": {"batch": 8, "precision": "float32"},
}
# What autograd itself keeps comes and goes in bursts.
NOT_TORCH = tracemalloc.Filter(inclusive=False, filename_pattern="*/torch/*")


@pytest.fixture
def traced() -> Iterator[None]:
    """Python's memory is traced meanwhile, NumPy's included."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def in_use_bytes() -> int:
    """Traced memory that is not garbage."""
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces([NOT_TORCH])
    return sum(trace.size for trace in snapshot.traces)


def bytes_a_batch(training: Training) -> float:
    """By how much all three nodes grow with each batch."""
    before = in_use_bytes()
    training.train(BATCHES)
    return (in_use_bytes() - before) / BATCHES


@pytest.mark.usefixtures("traced")
def test_a_batch_leaves_nothing_behind_and_one_number_would_be_seen() -> None:
    leaks = False
    kept: list[float] = []

    def trained(record: Trained) -> None:
        if leaks:
            kept.append(record.finished_at)

    with training_in_one_process(job_of_tree(JOB), trained) as training:
        training.train(WARM_UP)
        assert bytes_a_batch(training) < MOST_BYTES
        leaks = True
        assert bytes_a_batch(training) > MOST_BYTES
    assert len(kept) == BATCHES
