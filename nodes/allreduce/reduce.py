"""The arithmetic of one all-reduce round of one trainer, without I/O.

The values are cut into one slice per member, and each slice into chunks. A member receives the others' chunks
of its slice. It reduces a position when the chunks of all members are there, in the order of the members, and
sends the result to all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...pipeline.types import Float32Array
from ...pipeline.weighted_mean import WeightedMean
from ...pipeline.wire.buffers import BufferPool
from ...sync_algos.base import Slice
from .coding import Coding, EncodedChunk

MOST_REQUESTED_POSITIONS = 1024


class Chunk(NamedTuple):
    """Elements `start` to `stop`, in the slice of the member `owner`."""

    start: int
    stop: int
    owner: int


def cut_into_chunks(slices: Iterable[tuple[int, Slice]], elements: int) -> tuple[Chunk, ...]:
    """Cut each member's slice into chunks of at most `elements` elements."""
    return tuple(
        Chunk(start, min(start + elements, part.stop), owner)
        for owner, part in slices
        for start in range(part.start, part.stop, elements)
    )


def even_slices(numel: int, members: Sequence[int]) -> list[tuple[int, Slice]]:
    """Return one contiguous slice per member.

    Sizes differ by at most one, some may be empty.
    """
    count = len(members)
    bounds = [numel * part // count for part in range(count + 1)]
    return [(member, Slice(bounds[number], bounds[number + 1])) for number, member in enumerate(members)]


class ReduceRound:
    """One member's part of one round.

    Args:
        members: the group, ascending.
        index: this member.
        values: float32 [n]; read until the round ends, never written.
        weight: the weight of the values.
        chunk_elements: the most elements of a chunk.
        coding: the encoding of chunks.
        buffers: the pool that the result comes from.
    """

    def __init__(
        self,
        members: Sequence[int],
        index: int,
        values: Float32Array,
        weight: float,
        chunk_elements: int,
        coding: Coding,
        buffers: BufferPool,
    ) -> None:
        self.members = tuple(members)
        self._index = index
        self._values = values
        self.coding = coding
        self._weights = {index: weight}
        self.chunks = cut_into_chunks(even_slices(len(values), members), chunk_elements)
        self.owned_positions = [number for number, chunk in enumerate(self.chunks) if chunk.owner == index]
        others = [member for member in members if member != index]
        self._staged: dict[int, dict[int, Float32Array]] = {}
        self._missing_chunks = {peer: set(self.owned_positions) for peer in others}
        self._encoded: dict[int, EncodedChunk] = {}
        self._decoded_values: dict[int, Float32Array] = {}
        self.packed: dict[int, EncodedChunk] = {}
        self._missing_results = set(range(len(self.chunks)))
        self.result: Float32Array = buffers.take(len(values))
        self._mean = WeightedMean()
        if not others:
            for position in self.owned_positions:
                self._reduce(position, {})

    @property
    def reduced(self) -> bool:
        """Whether this member has reduced all of its slice."""
        return all(position in self.packed for position in self.owned_positions)

    @property
    def complete(self) -> bool:
        """Whether every position of `result` is there."""
        return not self._missing_results

    def outgoing(self) -> list[int]:
        """Return the positions that others reduce, interleaved over their owners."""
        first = {chunk.owner: position for position, chunk in reversed(list(enumerate(self.chunks)))}
        theirs = [position for position, chunk in enumerate(self.chunks) if chunk.owner != self._index]
        return sorted(theirs, key=lambda position: position - first[self.chunks[position].owner])

    @property
    def weight(self) -> float:
        """The weight of this member's values."""
        return self._weights[self._index]

    def outgoing_chunk(self, position: int) -> EncodedChunk:
        """Return this member's values at a position for its owner; encoded once."""
        if position not in self._encoded:
            chunk = self.chunks[position]
            values = self._values[chunk.start : chunk.stop]
            self._encoded[position], self._decoded_values[position] = self.coding.encode_up(
                chunk.start, values
            )
        return self._encoded[position]

    def missing_chunks(self, peer: int) -> set[int]:
        """Return the positions of this slice that lack a peer's values."""
        return self._missing_chunks.get(peer, set())

    def missing_results(self, peer: int | None = None) -> list[int]:
        """Return positions without a result, ascending; of one peer's slice, or of all."""
        return sorted(
            position
            for position in self._missing_results
            if peer is None or self.chunks[position].owner == peer
        )

    def take_chunk(self, peer: int, position: int, weight: float, packed: EncodedChunk) -> bool:
        """Accept a peer's values at a position of this member's slice.

        Returns whether it is reduced now.

        Raises:
            ValueError: the chunk cannot belong to this round; nothing has changed.
        """
        if not 0 <= position < len(self.chunks) or self.chunks[position].owner != self._index:
            raise ValueError(f"this trainer does not reduce position {position}")
        if position not in self._missing_chunks[peer]:
            return False
        self._check_size(position, packed)
        if not (math.isfinite(weight) and weight >= 0) or self._weights.get(peer, weight) != weight:
            raise ValueError(
                f"the weight {weight} is negative, not finite, or differs from the peer's earlier one"
            )
        values = self.coding.decode_up(peer, self.chunks[position].start, packed)
        self._weights[peer] = weight
        self._missing_chunks[peer].discard(position)
        staged = self._staged.setdefault(position, {})
        staged[peer] = values
        if len(staged) < len(self.members) - 1:
            return False
        self._reduce(position, self._staged.pop(position))
        return True

    def take_result(self, position: int, packed: EncodedChunk) -> bool:
        """Accept the result at a position that another member reduces.

        Returns whether it is new.

        Raises:
            ValueError: the result cannot belong to this round; nothing has changed.
        """
        if not 0 <= position < len(self.chunks):
            raise ValueError(f"there is no position {position}")
        if position not in self._missing_results or self.chunks[position].owner == self._index:
            return False
        self._check_size(position, packed)
        self._place(position, packed, self.coding.decode_down(self.chunks[position].start, packed))
        return True

    def _check_size(self, position: int, packed: EncodedChunk) -> None:
        chunk = self.chunks[position]
        if packed.elements != chunk.stop - chunk.start:
            raise ValueError(
                f"{packed.elements} elements at position {position}; {chunk.stop - chunk.start} are expected"
            )

    def _reduce(self, position: int, parts: dict[int, Float32Array]) -> None:
        chunk = self.chunks[position]
        self.outgoing_chunk(position)
        parts[self._index] = self._decoded_values[position]
        out = self.result[chunk.start : chunk.stop]
        weights = [self._weights[member] for member in self.members]
        self._mean.into(out, [parts[member] for member in self.members], weights)
        self._place(position, *self.coding.encode_down(chunk.start, out))

    def _place(self, position: int, packed: EncodedChunk, values: Float32Array) -> None:
        chunk = self.chunks[position]
        part = self.result[chunk.start : chunk.stop]
        if values.ctypes.data != part.ctypes.data:
            part[:] = values
        if packed.base == 0 and packed.payload.nbytes == part.nbytes:
            # Float32: the result itself can be sent again, so the received payload need not be kept.
            packed = packed._replace(payload=part.view(np.uint8))
        self.packed[position] = packed
        self._missing_results.discard(position)


def position_array(positions: Iterable[int]) -> NDArray[np.int32]:
    """Return positions as int32 for a message, at most MOST_REQUESTED_POSITIONS, ascending."""
    return np.array(sorted(positions)[:MOST_REQUESTED_POSITIONS], dtype=np.int32)
