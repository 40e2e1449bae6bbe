"""A sync node's slice of the center as a state machine without I/O (contracts 6 and 9).

Chunks of an exchange come in, in any order and perhaps more than once; when a slice is whole, the
algorithm's rule is applied to it at once, and the answer is remembered until the same trainer thread
begins its next exchange, so that a repeated chunk is answered again and never applied again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from ..pipeline.data.batch import Float32Array
from ..pipeline.wire.messages import CenterExchange, CenterRead, CenterSeed, CenterValues

Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class _Exchange:
    """One exchange of one client: what has arrived, and once applied, what was answered."""

    request: int
    staged: Float32Array | None
    arrived: dict[int, int] = field(default_factory=dict)
    arrived_elements: int = 0
    answer: Float32Array | None = None


class CenterState:
    """One slice of the center; owned by the sync node's service thread.

    Args:
        rule: the algorithm's `center_rule`.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.start = 0
        self.stop = 0
        self.values: torch.Tensor | None = None
        self._seeded: dict[int, int] = {}
        self._seed: Float32Array | None = None
        self._clients: dict[bytes, _Exchange] = {}
        self.applied_slices = 0
        self.repeated_chunks = 0
        self.abandoned_exchanges = 0

    @property
    def ready(self) -> bool:
        """Whether the slice has its first value."""
        return self.values is not None

    @property
    def memory_bytes(self) -> int:
        """Bytes of the slice, of what is staged, and of what is remembered."""
        own = self.values.numel() * 4 if self.values is not None else 0
        for exchange in self._clients.values():
            own += exchange.staged.nbytes if exchange.staged is not None else 0
            own += exchange.answer.nbytes if exchange.answer is not None else 0
        return own

    def seed(self, message: CenterSeed) -> CenterValues:
        """A chunk of the first value; repeats and chunks after the last change nothing."""
        if self.values is None:
            if self._seed is None:
                if not 0 <= message.slice_start < message.slice_stop:
                    raise ValueError(f"a slice from {message.slice_start} to {message.slice_stop}")
                self._seed = _empty(message.slice_stop - message.slice_start)
                self.start, self.stop = message.slice_start, message.slice_stop
            elif (message.slice_start, message.slice_stop) != (self.start, self.stop):
                raise ValueError(f"another slice than {self.start} to {self.stop}")
            self._place(self._seed, self._seeded, message.start, message.values)
            if sum(self._seeded.values()) == len(self._seed):
                self.values = torch.from_numpy(self._seed)
                self._seeded = {}
        return CenterValues(message.request, message.start, np.empty(0, dtype=np.float32))

    def exchange(self, client: bytes, message: CenterExchange) -> list[tuple[int, Float32Array]]:
        """A chunk of a replica; gives the (start, delta) chunks to answer now, if any."""
        center = self._require_center()
        current = self._clients.get(client)
        if current is not None and message.request < current.request:
            return []
        if current is None or message.request > current.request:
            if current is not None and current.answer is None:
                self.abandoned_exchanges += 1
            current = _Exchange(message.request, np.empty(center.numel(), dtype=np.float32))
            self._clients[client] = current
        if current.answer is not None:
            self.repeated_chunks += 1
            return [self._part(current.answer, message.start, len(message.values))]
        assert current.staged is not None
        current.arrived_elements += self._place(
            current.staged, current.arrived, message.start, message.values
        )
        if current.arrived_elements < center.numel():
            return []
        current.answer = self._rule(center, torch.from_numpy(current.staged)).numpy()
        current.staged = None
        self.applied_slices += 1
        return [self._part(current.answer, start, size) for start, size in sorted(current.arrived.items())]

    def read(self, message: CenterRead) -> tuple[int, Float32Array]:
        """The center's values as they are now, a copy."""
        center = self._require_center().numpy()
        if not self.start <= message.start < message.stop <= self.stop:
            raise ValueError(
                f"elements {message.start} to {message.stop} are not of {self.start} to {self.stop}"
            )
        return message.start, center[message.start - self.start : message.stop - self.start].copy()

    def forget(self, token: str) -> int:
        """Forgets a dead trainer's threads; gives how many slices were applied for it without its knowing,
        at most: those whose answer nothing followed."""
        prefix = f"{token}/".encode()
        mine = [client for client in self._clients if client.startswith(prefix)]
        return sum(1 for client in mine if self._clients.pop(client).answer is not None)

    def _require_center(self) -> torch.Tensor:
        if self.values is None:
            raise ValueError("the center has no first value yet")
        return self.values

    def _place(self, target: Float32Array, arrived: dict[int, int], start: int, values: Float32Array) -> int:
        """Copies a chunk that has not arrived yet; gives how many elements are new."""
        at = start - self.start
        if at < 0 or len(values) == 0 or at + len(values) > len(target):
            raise ValueError(
                f"{len(values)} elements from {start} are not of the slice {self.start} to {self.stop}"
            )
        if arrived.get(start) == len(values):
            return 0
        stop = start + len(values)
        if any(other < stop and start < other + size for other, size in arrived.items()):
            raise ValueError(f"{len(values)} elements from {start} overlap what came before")
        target[at : at + len(values)] = values
        arrived[start] = len(values)
        return len(values)

    def _part(self, answer: Float32Array, start: int, size: int) -> tuple[int, Float32Array]:
        at = start - self.start
        if at < 0 or at + size > len(answer):
            raise ValueError(f"{size} elements from {start} are not of the slice")
        return start, answer[at : at + size]


def _empty(elements: int) -> Float32Array:
    try:
        return np.empty(elements, dtype=np.float32)
    except (MemoryError, ValueError) as error:
        raise ValueError(f"a slice of {elements} elements does not fit into memory") from error
