"""What a trainer remembers of rounds that are over, to answer those who are not sure of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .coding import Packed
from .early_chunks import RoundId

REMEMBERED_ROUNDS = 64
KEPT_RESULTS = 2


@dataclass
class _Result:
    id: RoundId
    packed: dict[int, Packed]
    waiting: set[int]


class RoundMemory:
    """Which rounds ended how, and the results of the last ones while anyone may still lack them."""

    def __init__(self) -> None:
        # True: completed. Else whether this trainer had reduced its slice (see `PeerVerdict`).
        self._completed: OrderedDict[RoundId, bool] = OrderedDict()
        self._reduced: OrderedDict[RoundId, bool] = OrderedDict()
        self._results: list[_Result] = []

    @property
    def memory_bytes(self) -> int:
        """Bytes of the results."""
        return sum(packed.payload.nbytes for kept in self._results for packed in kept.packed.values())

    def completed(self, id: RoundId, packed: dict[int, Packed], others: Iterable[int]) -> None:
        """A round is complete here; `others` may still lack its results."""
        _remember(self._completed, id, True)
        self._results.append(_Result(id, packed, set(others)))
        del self._results[:-KEPT_RESULTS]
        self._drop()

    def ended(self, id: RoundId, *, reduced: bool) -> None:
        """A round ended without a result here, and never will have one."""
        _remember(self._reduced, id, reduced)

    def is_completed(self, id: RoundId) -> bool:
        """Whether a round is complete here."""
        return id in self._completed

    def is_ended(self, id: RoundId) -> bool:
        """Whether a round is known to have ended here without a result."""
        return id in self._reduced

    def had_reduced(self, id: RoundId) -> bool:
        """Of a round that ended here; of one that is not remembered, what decides nothing."""
        return self._reduced.get(id, True)

    def results(self, id: RoundId) -> dict[int, Packed]:
        """The results of a round by position; nothing if they are not kept any more."""
        return next((kept.packed for kept in self._results if kept.id == id), {})

    def passed(self, peer: int, id: RoundId) -> None:
        """A peer is at a round, so it needs nothing of earlier ones."""
        for kept in self._results:
            if kept.id < id:
                kept.waiting.discard(peer)
        self._drop()

    def only(self, members: Collection[int]) -> None:
        """The others are gone, and need nothing."""
        for kept in self._results:
            kept.waiting &= set(members)
        self._drop()

    def _drop(self) -> None:
        self._results = [kept for kept in self._results if kept.waiting]


def _remember(into: OrderedDict[RoundId, bool], id: RoundId, value: bool) -> None:
    into[id] = value
    while len(into) > REMEMBERED_ROUNDS:
        into.popitem(last=False)
