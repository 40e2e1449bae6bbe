"""The merges of one slice of a center: contributions, weighted mean and the algorithm's rule."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch

from ...pipeline.weighted_mean import WeightedMean
from ...pipeline.wire.endpoints import token_of
from ...sync_algos.base import Algorithm, Merge
from ...sync_algos.contract.merge_window import MergeWindow, merge_weights
from .exchange_session import ExchangeSession
from .saved_state import CenterMemory

# A part of this length, its mean and the center's state fit into a core's cache.
PART_ELEMENTS = 1 << 14
MOST_EXAMPLES = 1 << 40
"""No trainer trains more between two merges; more is refused."""


@dataclass(slots=True)
class TrainerCounts:
    """What a slice has of one trainer.

    Attributes:
        examples, merges: its examples in merges, and the merges that it was in.
        missed_merges: those that closed without it while it trained.
        late_seconds, most_late_seconds: by how long it was late, in all and at once; see
            `MergeWindow.late_seconds`.
    """

    examples: int = 0
    merges: int = 0
    missed_merges: int = 0
    late_seconds: float = 0.0
    most_late_seconds: float = 0.0


class SliceMerges:
    """The merges of one slice; they belong to the sync node's service thread.

    Attributes:
        merges: how many merges have moved the center.
        late_merges: how many of them closed without a trainer that takes part.
        trainers: the counts of each trainer, by its token.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._window = MergeWindow(algorithm.merge_terms)
        self._waiting: dict[bytes, tuple[ExchangeSession, int]] = {}
        self._state: dict[str, torch.Tensor] = {}
        self._mean = WeightedMean()
        self._number = 0
        self.merges = 0
        self.late_merges = 0
        self.trainers: defaultdict[str, TrainerCounts] = defaultdict(TrainerCounts)

    def has(self, identity: bytes) -> bool:
        """Return whether the open merge has a contribution of this trainer's thread."""
        return identity in self._waiting

    def contribute(self, identity: bytes, session: ExchangeSession, examples: int, now: float) -> None:
        """Add a complete slice to the open merge; raises ValueError for an impossible number of examples."""
        if examples > MOST_EXAMPLES:
            raise ValueError(f"{examples} examples behind one contribution; at most {MOST_EXAMPLES} can be")
        token = token_of(identity)
        late_seconds = self._window.late_seconds(token, now)
        self._window.contributed(token, examples, now)
        counts = self.trainers[token]
        counts.late_seconds += late_seconds
        counts.most_late_seconds = max(counts.most_late_seconds, late_seconds)
        self._waiting[identity] = session, examples

    def closes_at(self, now: float) -> float:
        """See `MergeWindow.closes_at`."""
        return self._window.closes_at(now)

    def close(self, center: torch.Tensor, now: float) -> dict[bytes, ExchangeSession]:
        """Merge what has come into `center`, float32 [n]; return the sessions to answer.

        Without any example the center stays as it is, unless codecs had lost something; see `merge_weights`.
        """
        trainers, absent = self._window.trainers(now), self._window.absent()
        merged = dict(sorted(self._waiting.items()))
        self._waiting = {}
        self._window.close(now)
        sessions = [session for session, _ in merged.values()]
        counts = [examples for _, examples in merged.values()]
        weights = merge_weights(counts, lambda number: bool(sessions[number].values().any()))
        if any(weights):
            self._move(center, sessions, Merge(weights, trainers, self._number))
            self._number += 1
            self.merges += 1
            self.late_merges += len(merged) < trainers
            for name in absent:
                self.trainers[str(name)].missed_merges += 1
        for identity, (_, examples) in merged.items():
            of_trainer = self.trainers[token_of(identity)]
            of_trainer.examples += examples
            of_trainer.merges += 1
        return {identity: session for identity, (session, _) in merged.items()}

    def forget(self, token: str) -> None:
        """Wait no longer for a trainer that died or left; what it has contributed stays."""
        self._window.forget(token)

    def memory(self, elements: int) -> CenterMemory:
        """Return a copy of the state of a slice of so many elements: zeros before the first merge."""
        names = self._algorithm.center_state_names
        tensors = {
            name: self._state[name].clone() if self._state else torch.zeros(elements) for name in names
        }
        return CenterMemory(tensors, self._number)

    def remember(self, memory: CenterMemory) -> None:
        """Go on from the state of a run before; its tensors belong to these merges."""
        self._state, self._number = memory.tensors, memory.merges

    def restart(self) -> None:
        """Drop the open merge and the state: the center begins with another value."""
        self._window = MergeWindow(self._algorithm.merge_terms)
        self._waiting, self._state, self._number = {}, {}, 0

    def _move(self, center: torch.Tensor, sessions: list[ExchangeSession], merge: Merge) -> None:
        if not self._state:
            self._state = {name: torch.zeros_like(center) for name in self._algorithm.center_state_names}
        values = [session.values() for session in sessions]
        mean = np.empty(min(PART_ELEMENTS, center.numel()), dtype=np.float32)
        for start in range(0, center.numel(), PART_ELEMENTS):
            part = slice(start, min(start + PART_ELEMENTS, center.numel()))
            out = mean[: part.stop - part.start]
            self._mean.into(out, [array[part] for array in values], merge.examples)
            state = {name: tensor[part] for name, tensor in self._state.items()}
            self._algorithm.merge_rule(center[part], state, torch.from_numpy(out), merge)
