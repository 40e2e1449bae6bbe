"""Rounds in which a replica sends what it has trained, and goes on from the center."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from ..base import Algorithm, ModelOrigin, PeerLost, Peers, Replica, Slice


class DeltaExchange(Algorithm):
    """Base of algorithms whose center takes deltas.

    With w the replica, s its snapshot, b the base (the part of the replica that the center has), l what a
    lossy codec has lost of the delta on its way (else 0), and c what the center answers:

        d = s - b,    w <- w + (c - (s - l)),    b <- c.

    So after a round the replica is the center plus what its workers did since the snapshot, plus l; and b is
    where the next delta starts, which therefore has l. At first b is the first weights, as the center is.
    Everything is float32 [numel], and exchanged slice by slice.

    Each delta counts once. If no reply comes, it is not known whether the center took the delta; d and s are
    kept. The next round first resumes that exchange (`Center.resume_exchange`), then sends what was trained
    since s.
    """

    needs_center = True
    counts_once = True
    model = ModelOrigin.CENTER

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._base = torch.empty(0)
        # By slice, with the trained examples that they contain.
        self._unanswered: dict[Slice, tuple[torch.Tensor, int]] = {}
        self._first_examples = 0
        self._taken_examples: dict[Slice, int] = {}

    def start(self, replica: Replica) -> None:
        """Start the base at the first weights."""
        self._base = replica.snapshot(replica.whole)
        self._unanswered = {}
        self._first_examples, self._taken_examples = replica.trained_examples, {}

    async def round(self, replica: Replica, peers: Peers) -> bool:
        """Exchange every slice with the center, all at once."""
        done = await asyncio.gather(*(self._exchange(replica, peers, part) for part in peers.center.slices))
        return all(done)

    def recentered(self, part: Slice, values: torch.Tensor, examples: int) -> None:
        """Start the slice's next delta at what the center's new mean has."""
        self._base[part.start : part.stop] = values
        self._unanswered.pop(part, None)
        self._taken_examples[part] = examples

    async def _exchange(self, replica: Replica, peers: Peers, part: Slice) -> bool:
        try:
            if part in self._unanswered:
                self._take(replica, part, await peers.center.resume_exchange(part), peers.center.lost(part))
            # A worker counts examples after their step: the next delta may count some of this snapshot.
            taken = self._taken_examples.get(part, self._first_examples)
            # A device may take back a batch that was counted: none is new before as many are trained again.
            examples = max(replica.trained_examples, taken)
            snapshot = self._snapshot(replica, part, is_sent=examples > taken or peers.center.is_exact)
            self._unanswered[part] = snapshot, examples
            delta = snapshot - self._base[part.start : part.stop]
            reply = await peers.center.exchange(part, delta, examples - taken if self.merges else None)
            self._take(replica, part, reply, peers.center.lost(part))
        except PeerLost:
            return False
        return True

    def _snapshot(self, replica: Replica, part: Slice, *, is_sent: bool) -> torch.Tensor:
        """Return what the center is to have: the replica, or no more than it has, so that the delta is 0.

        In a merge a delta without examples weighs nothing, and would be answered as if it had been merged: a
        step that is not counted yet, and what codecs have lost before.
        """
        if is_sent or not self.merges:
            return replica.snapshot(part)
        return self._base[part.start : part.stop].clone()

    def _take(self, replica: Replica, part: Slice, center: torch.Tensor, lost: torch.Tensor) -> None:
        """Move the replica by the center minus what that has of the snapshot."""
        snapshot, self._taken_examples[part] = self._unanswered.pop(part)
        sent = snapshot - lost
        replica.add_(part, center - sent, 1.0)
        # Rounded as the replica is, so that the delta of an untrained replica is exactly what was lost.
        torch.add(sent, center - sent, out=self._base[part.start : part.stop])
