"""Bytes of the largest messages that a node of a job is sent.

They bound what a peer without a place in the job can have a node hold, see `wire.keys.arrivals`.
"""

from __future__ import annotations

from typing import Final

from ...pipeline.config.job import Job
from ...pipeline.wire.frames import MAX_HEADER_BYTES
from ...pipeline.wire.keys.arrivals import HEADER_ROOM
from ...pipeline.wire.sockets import MAX_MESSAGE_BYTES

# Largest message without tensors.
LARGEST_HEADER_BYTES: Final = MAX_HEADER_BYTES + HEADER_ROOM
# For each id: its row or key, and what the codecs of one-float rows add.
_ID_BYTES: Final = 4 + 8 + 8
_LENGTH_BYTES: Final = 4
_FLOAT_BYTES: Final = 4
# A codec may take more bytes than float32 does, where its values leave it nothing to save.
_CODEC_FACTOR: Final = 2
# Limit of `sync.chunk_bytes`.
LARGEST_CHUNK_BYTES: Final = 64 << 20


def largest_of_chunks(chunk_bytes: int) -> int:
    """Return the largest message with a chunk of parameters, whatever its codec."""
    return _CODEC_FACTOR * chunk_bytes + HEADER_ROOM


def largest_of_rows(job: Job) -> int:
    """Return the largest push of a batch's gradients to an embedding node.

    The node may have all tables. Bags are counted as full: `max_ids` ids for each example.
    """
    example_bytes = 0
    for column in job.embedded_columns:
        ids = job.data.columns[column.name].max_ids if column.pooling else 1
        vectors = 1 if column.of_table.pooled_by_nodes else ids
        example_bytes += _LENGTH_BYTES + _ID_BYTES * ids + _FLOAT_BYTES * column.dim * vectors
    return min(MAX_MESSAGE_BYTES, job.trainer.batch * example_bytes + HEADER_ROOM)
