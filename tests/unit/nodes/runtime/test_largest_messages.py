"""The largest messages of a job bound what strangers may have its nodes hold."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.nodes.runtime.largest_messages import largest_of_chunks, largest_of_rows
from shadowsync.pipeline.codecs.formats import CODECS, CodecOptions, make_codec
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.frames import encode
from shadowsync.pipeline.wire.messages import Push
from shadowsync.pipeline.wire.sockets import MAX_MESSAGE_BYTES

BATCH, TABLES, DIM = 64, 3, 5


def job(column: dict[str, object]) -> Job:
    columns = {"y": {"kind": "label"}} | {f"c{number}": column for number in range(TABLES)}
    return job_of_tree(
        {
            "data": {"format": "parquet", "path": ["x"], "columns": columns},
            "model": {"embedding_dim": DIM},
            "trainer": {"batch": BATCH},
        }
    )


def push(ids: int, vectors: int) -> int:
    """Bytes of a push of such a batch: ids and vectors of one example and table."""
    message = Push(
        1,
        BatchId(0, 0, 0, 1),
        0,
        np.zeros(BATCH * TABLES * ids, np.int32),
        np.zeros(BATCH * TABLES * vectors * DIM, np.float32),
        bag_lengths=np.zeros((TABLES, BATCH), np.int32),
    )
    return sum(memoryview(frame).nbytes for frame in encode(message))


@pytest.mark.parametrize(
    ("column", "ids", "vectors"),
    [
        ({"kind": "categorical"}, 1, 1),
        ({"kind": "multi_hot", "max_ids": 9}, 9, 1),
        ({"kind": "multi_hot", "max_ids": 9, "pooling": "none"}, 9, 9),
        ({"kind": "multi_hot", "max_ids": 9, "weights": "w"}, 9, 9),
    ],
)
def test_the_largest_push_is_within_it(column: dict[str, object], ids: int, vectors: int) -> None:
    largest, without = largest_of_rows(job(column)), largest_of_rows(job({"kind": "categorical"}))
    assert push(ids, vectors) < largest
    # It follows the job, and is not just some large number.
    assert (largest > without) == (ids > 1)


def test_it_is_never_more_than_any_message_has() -> None:
    assert (
        largest_of_rows(job({"kind": "multi_hot", "max_ids": 100_000, "pooling": "none"})) < MAX_MESSAGE_BYTES
    )
    wide = {"kind": "multi_hot", "max_ids": 100_000, "pooling": "none"}
    made = job(wide).model_copy(update={"trainer": job(wide).trainer.model_copy(update={"batch": 10**6})})
    assert largest_of_rows(made) == MAX_MESSAGE_BYTES


@pytest.mark.parametrize("name", CODECS)
def test_a_chunk_is_within_it_whatever_its_codec(name: str) -> None:
    chunk_bytes = 1 << 16
    values = np.random.default_rng(1).normal(size=chunk_bytes // 4).astype(np.float32)
    codec = make_codec(name, CodecOptions(int8_block=64, topk_fraction=0.5, topk_bits=8))
    # Without the room for a header, which would hide it.
    assert codec.encode(values).nbytes <= largest_of_chunks(chunk_bytes) - largest_of_chunks(0)
