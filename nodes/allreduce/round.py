"""Where one trainer is in one round, and when each of the others was last heard to go on."""

from __future__ import annotations

from enum import Enum

from ...pipeline.wire.peer_messages import PeerVerdict
from ...pipeline.wire.retransmission import RetransmitPolicy
from .early_chunks import RoundId
from .reduce import ReduceRound
from .state_transfer import Adoption


class Phase(Enum):
    """MEETING: waits for the others, or for a state to adopt. MET: waits for this trainer's values.
    STREAMING: under way. RESOLVING: cannot end normally; asks who completed it."""

    MEETING = "meeting"
    MET = "met"
    STREAMING = "streaming"
    RESOLVING = "resolving"


class PeerRound:
    """One round of one trainer.

    Args:
        group: its members, ascending; `index` is this one.
        version: of this trainer's state when it began.
    """

    def __init__(self, id: RoundId, group: tuple[int, ...], index: int, version: int, now: float) -> None:
        self.id = id
        self.group = group
        self.others = tuple(member for member in group if member != index)
        self.version = version
        self.phase = Phase.MEETING
        self.ready: set[int] = set()
        self.adoption: Adoption | None = None
        self.work: ReduceRound | None = None
        self.survivors: set[int] = set()
        self.verdicts: dict[int, PeerVerdict] = {}
        self.resolving_since = now
        self.last_progress = now
        self._progress = dict.fromkeys(self.others, now)
        self._asked = dict.fromkeys(self.others, now)

    @property
    def streams(self) -> bool:
        """Whether the round may still complete normally, and this trainer has given its values."""
        return self.phase is Phase.STREAMING

    def progressed(self, peer: int, now: float) -> None:
        """A peer went on, or has a good reason not to."""
        self._progress[peer] = now

    def progressed_all(self, now: float) -> None:
        """A new phase: everyone's time begins anew."""
        self._progress = dict.fromkeys(self.others, now)
        self.last_progress = now

    def silent(self, peer: int, now: float) -> float:
        """For how long a peer has not gone on."""
        return now - self._progress[peer]

    def may_ask(self, peer: int, now: float, policy: RetransmitPolicy) -> bool:
        """Whether it is time to ask a silent peer, again; if so, that is noted."""
        if not policy.due(max(self._progress[peer], self._asked[peer]), now):
            return False
        self._asked[peer] = now
        return True

    def blocked_by(self) -> list[int]:
        """Whom this trainer waits for before it meets."""
        if self.adoption is not None:
            return [self.adoption.donor]
        return [peer for peer in self.others if peer not in self.ready] if self.phase is Phase.MEETING else []

    def completers(self) -> list[int]:
        """Who said that it completed the round."""
        return sorted(peer for peer, verdict in self.verdicts.items() if verdict.completed)
