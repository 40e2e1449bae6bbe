"""Handing an algorithm's state to a trainer that lags behind, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from ...pipeline.types import Float32Array
from ...pipeline.wire.peer_messages import PeerState, PeerStateAsk
from ...sync_algos.base import Algorithm, AlgorithmState

Key = tuple[object, ...]


class StateSender:
    """The side that has the state."""

    def __init__(self, algorithm: Algorithm, chunk_elements: int) -> None:
        self._algorithm = algorithm
        self._chunk = chunk_elements

    @property
    def version(self) -> int:
        """How many rounds the state is of; 0 for an algorithm without any."""
        return self._algorithm.state().completed_rounds if self._algorithm.state_names else 0

    def chunks(self, request: PeerStateAsk) -> Iterator[tuple[Key, Callable[[], PeerState | None]]]:
        """What answers `request`: of each chunk a key, and what makes it when it is sent."""
        if self.version != request.version:
            return
        position = 0
        for name in self._algorithm.state_names:
            for start in range(0, self._algorithm.state().tensors[name].numel(), self._chunk):
                if position >= request.position:
                    yield ("state", request.generation, position), self._maker(request, position, name, start)
                position += 1

    def _maker(
        self, request: PeerStateAsk, position: int, name: str, start: int
    ) -> Callable[[], PeerState | None]:
        def make() -> PeerState | None:
            if self.version != request.version:
                return None
            flat = self._algorithm.state().tensors[name]
            # A copy: the algorithm goes on with its state when this may still wait to leave.
            values = flat[start : start + self._chunk].numpy().astype("<f4", copy=True)
            return PeerState(request.generation, request.version, position, name, values)

        return make


class StateReceiver:
    """The side that lags behind.

    Args:
        donor: the member that gives its state, of `version`.
        names: of the state's tensors, each float32 [numel].
    """

    def __init__(
        self,
        donor: int,
        generation: int,
        version: int,
        *,
        names: tuple[str, ...],
        numel: int,
        chunk_elements: int,
    ) -> None:
        self.donor = donor
        self._generation, self._version = generation, version
        self._parts = [
            (name, start, min(start + chunk_elements, numel))
            for name in names
            for start in range(0, numel, chunk_elements)
        ]
        self._missing = set(range(len(self._parts)))
        self._tensors: dict[str, Float32Array] = {name: np.empty(numel, dtype=np.float32) for name in names}

    @property
    def complete(self) -> bool:
        """Whether all of it has come."""
        return not self._missing

    def request(self) -> PeerStateAsk:
        """Asks for what is missing."""
        return PeerStateAsk(self._generation, self._version, min(self._missing, default=0))

    def take(self, message: PeerState) -> bool:
        """A chunk; gives whether it is new. Raises ValueError for one that is not of this state."""
        if not 0 <= message.position < len(self._parts) or message.version != self._version:
            raise ValueError(f"no chunk {message.position} of version {message.version} is expected")
        name, start, stop = self._parts[message.position]
        if message.name != name or len(message.values) != stop - start:
            raise ValueError(f"{len(message.values)} elements of {message.name!r:.40}; {name!r} is expected")
        if message.position not in self._missing:
            return False
        self._tensors[name][start:stop] = message.values
        self._missing.discard(message.position)
        return True

    def state(self) -> AlgorithmState:
        """The whole state."""
        tensors = {name: torch.from_numpy(values) for name, values in self._tensors.items()}
        return AlgorithmState(self._version, tensors)
