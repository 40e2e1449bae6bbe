"""Proofs that the coordinator has granted a span to a reader.

The coordinator gives one with each span, the reader sends it with each batch, and the trainer that gets the
batch checks it. Readers do not have the key of the proofs, so none can deliver what another one was given.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from ...pipeline.types import BatchId
from ...pipeline.wire.field_checks import MAX_INTEGER

DIGEST_BYTES: Final = 16
_ROWS_BYTES: Final = 8


def proof_of(key: str, reader: str, epoch: int, span: int, most_batches: int) -> bytes:
    """Return the proof that a reader has a span, whose batches have numbers below `most_batches`."""
    bound = min(most_batches, MAX_INTEGER).to_bytes(_ROWS_BYTES, "big")
    text = f"{reader}/{epoch}/{span}/".encode() + bound
    return bound + hashlib.blake2b(text, key=key.encode(), digest_size=DIGEST_BYTES).digest()


class ProofCheck:
    """The check that readers were granted what they deliver. Any thread may call it."""

    def __init__(self, key: str) -> None:
        self._key = key
        # Of each reader, the last span that it has proved, with the proof.
        self._proved: dict[str, tuple[int, int, bytes]] = {}

    def require(self, reader: str, batch: BatchId, proof: bytes) -> None:
        """Raise ValueError for a batch that the coordinator has not granted to this reader."""
        proved = batch.epoch, batch.span, proof
        most = int.from_bytes(proof[:_ROWS_BYTES], "big")
        if self._proved.get(reader) != proved:
            right = proof_of(self._key, reader, batch.epoch, batch.span, most) if most <= MAX_INTEGER else b""
            if not hmac.compare_digest(proof, right):
                raise ValueError(f"span {batch.span} of epoch {batch.epoch} was not given to {reader}")
            self._proved[reader] = proved
        if batch.number >= most:
            raise ValueError(f"its span has at most {most} batches")
