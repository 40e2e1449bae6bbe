"""Transfer of an algorithm's state to a trainer that lags behind, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from ...pipeline.types import Float32Array, is_finite
from ...pipeline.wire.peer_messages import PeerState, PeerStateRequest
from ...sync_algos.base import Algorithm, AlgorithmState

Key = tuple[object, ...]


NO_VERSION = -1


class StateSender:
    """The sending side: the trainer that has the state.

    Attributes:
        is_late: whether this trainer joined the running job. The state that it began with is not the group's.
    """

    def __init__(self, algorithm: Algorithm, chunk_elements: int) -> None:
        self._algorithm = algorithm
        self._chunk = chunk_elements
        self.is_late = False

    @property
    def version(self) -> int:
        """Completed rounds of the state; 0 for an algorithm without state.

        NO_VERSION if it has not been the group's yet.
        """
        completed = self._algorithm.state().completed_rounds if self._algorithm.state_names else 0
        return NO_VERSION if self.is_late and completed == 0 else completed

    def chunks(self, request: PeerStateRequest) -> Iterator[tuple[Key, Callable[[], PeerState | None]]]:
        """Yield, per requested chunk, its key and a function that makes it."""
        if self.version != request.version:
            return
        position = 0
        for name in self._algorithm.state_names:
            for start in range(0, self._algorithm.state().tensors[name].numel(), self._chunk):
                if position >= request.position:
                    yield ("state", request.generation, position), self._maker(request, position, name, start)
                position += 1

    def _maker(
        self, request: PeerStateRequest, position: int, name: str, start: int
    ) -> Callable[[], PeerState | None]:
        def make() -> PeerState | None:
            if self.version != request.version:
                return None
            flat = self._algorithm.state().tensors[name]
            # A copy: the algorithm may change its state while this message is still queued.
            values = flat[start : start + self._chunk].numpy().astype("<f4", copy=True)
            return PeerState(request.generation, request.version, position, name, values)

        return make


class StateReceiver:
    """The receiving side: the trainer that lags behind.

    Args:
        source: the member that sends its state.
        version: the version of that state.
        names: names of the state's tensors, each float32 [numel].
    """

    def __init__(
        self,
        source: int,
        generation: int,
        version: int,
        *,
        names: tuple[str, ...],
        numel: int,
        chunk_elements: int,
    ) -> None:
        self.source = source
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
        """Whether all chunks have arrived."""
        return not self._missing

    def request(self) -> PeerStateRequest:
        return PeerStateRequest(self._generation, self._version, min(self._missing, default=0))

    def take(self, message: PeerState) -> bool:
        """Accept a chunk; return whether it is new.

        Raises ValueError if it is not of this state.
        """
        if not 0 <= message.position < len(self._parts) or message.version != self._version:
            raise ValueError(f"no chunk {message.position} of version {message.version} is expected")
        name, start, stop = self._parts[message.position]
        if message.name != name or len(message.values) != stop - start:
            raise ValueError(f"{len(message.values)} elements of {message.name!r:.40}; {name!r} is expected")
        if message.position not in self._missing:
            return False
        if not is_finite(message.values):
            raise ValueError(f"elements {start} to {stop} of {name!r} are not all finite")
        self._tensors[name][start:stop] = message.values
        self._missing.discard(message.position)
        return True

    def state(self) -> AlgorithmState:
        tensors = {name: torch.from_numpy(values) for name, values in self._tensors.items()}
        return AlgorithmState(max(0, self._version), tensors)
