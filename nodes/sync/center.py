"""A sync node's slice of the center: a state machine without I/O.

Chunks of an exchange arrive in any order, perhaps more than once. When the slice is complete, the algorithm's
rule is applied at once. The answer is saved until the same trainer thread begins its next exchange, so that a
repeated chunk is answered again and never applied twice. If the algorithm merges, a complete slice waits for
the merge (`SliceMerges`), and all of a merge are answered when it closes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from ...pipeline.codecs.formats import Float32, LinkCodecs
from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool, bytes_of
from ...pipeline.wire.center_messages import (
    CenterContribution,
    CenterExchange,
    CenterRead,
    CenterSeed,
    CenterValues,
)
from ...pipeline.wire.endpoints import token_of
from .exchange_session import ExchangeSession, has_arrived, require_finite
from .slice_merges import SliceMerges

Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Answer = tuple[bytes, CenterValues]
"""A chunk, and the identity of the trainer's thread that it is for."""

# A part of this length and the rule's temporary tensors fit into a core's cache.
RULE_ELEMENTS = 1 << 15

_PLAIN = Float32()


class CenterState:
    """One slice of the center; it belongs to the sync node's service thread.

    Args:
        rule: the algorithm's `center_rule`.
        codecs: the codecs of the job's exchanges.
        merges: the merges of an algorithm that merges; then `rule` is never applied.
        deltas: whether trainers send deltas and get the center's values, see `Algorithm.counts_once`; always
            if the algorithm merges.

    Attributes:
        reference_bytes: memory of lossy codecs over all sessions; any thread may read it.
    """

    def __init__(
        self,
        rule: Rule,
        codecs: LinkCodecs | None = None,
        merges: SliceMerges | None = None,
        *,
        deltas: bool = False,
    ) -> None:
        self._rule = rule
        self._deltas = deltas or merges is not None
        self.merges = merges
        self._codecs = codecs or LinkCodecs()
        self.start = 0
        self.stop = 0
        self.values: torch.Tensor | None = None
        self._seeds: dict[bytes, _Seed] = {}
        self._seeders: set[bytes] = set()
        self._seed_sum: Float32Array | None = None
        self._many_seeds = False
        self._sessions: dict[bytes, ExchangeSession] = {}
        self._dead_trainers: set[str] = set()
        self._buffers = BufferPool(0)
        self.applied_slices = 0
        self.repeated_chunks = 0
        self.abandoned_exchanges = 0
        self.reference_bytes = 0

    @property
    def ready(self) -> bool:
        """Whether the slice has its first value."""
        return self.values is not None

    def await_seeds(self) -> None:
        """Collect seeds for the center's initial value, unless it has one.

        Trainers then begin anew: exchanges that were under way are dropped. A center that merges takes a new
        value even if it has one: what it had not merged is in the replicas.
        """
        self._many_seeds = True
        if self.merges is not None:
            self.merges.restart()
            self.values = None
        # Of an earlier attempt, in which not all came.
        self._seeds, self._seeders, self._seed_sum = {}, set(), None
        self._sessions.clear()
        self.reference_bytes = 0

    def seed_mean(self) -> int:
        """Set an empty center to the mean of the seeds; return their count."""
        count = len(self._seeders)
        if self.values is None and self._seed_sum is not None:
            self.values = torch.from_numpy(self._seed_sum).div_(count)
        self._seeds, self._seed_sum = {}, None
        return count

    def seed(self, message: CenterSeed, identity: bytes = b"") -> CenterValues:
        """Accept a chunk of a first value; repeats and later chunks change nothing.

        `identity` is of the trainer's thread that sent it.
        """
        if self.values is None and identity not in self._seeders:
            if not self.stop:
                if not 0 <= message.slice_start < message.slice_stop:
                    raise ValueError(f"invalid slice from {message.slice_start} to {message.slice_stop}")
                seed = _Seed(message.slice_start, _empty(message.slice_stop - message.slice_start))
                self._seeds[identity] = seed
                # A session uses one buffer while another is still being sent.
                self._buffers = BufferPool(bytes_of(len(seed.values), arrays=2))
                self.start, self.stop = message.slice_start, message.slice_stop
            elif (message.slice_start, message.slice_stop) != (self.start, self.stop):
                raise ValueError(f"the slice differs from {self.start} to {self.stop}")
            if identity not in self._seeds:
                self._seeds[identity] = _Seed(self.start, _empty(self.stop - self.start))
            self._seeds[identity].place(message)
            if self._seeds[identity].is_complete:
                self._add_seed(identity)
        return CenterValues(message.request, message.start, 0, False, np.empty(0, dtype=np.uint8))

    def exchange(self, identity: bytes, message: CenterExchange, now: float = 0.0) -> list[CenterValues]:
        """Accept a chunk of a replica; return the chunks to answer now, if any.

        `now` is the time by any clock that never goes back. A contribution is answered by `close_merge`.
        """
        center = self._require_center()
        session = self._sessions.get(identity)
        if token_of(identity) in self._dead_trainers:
            raise ValueError("this trainer was declared dead")
        if session is None:
            session = self._sessions[identity] = ExchangeSession(
                self.start, center.numel(), self._codecs, self._buffers, deltas=self._deltas
            )
            self.reference_bytes += session.reference_bytes
        if message.request < session.request:
            return []
        held = session.reference_bytes
        try:
            return self._exchange(identity, session, center, message, now)
        finally:
            self.reference_bytes += session.reference_bytes - held

    def _exchange(
        self,
        identity: bytes,
        session: ExchangeSession,
        center: torch.Tensor,
        message: CenterExchange,
        now: float,
    ) -> list[CenterValues]:
        merges = self.merges
        if (merges is None) is isinstance(message, CenterContribution):
            raise ValueError(
                f"a {message.KIND} is not accepted here: the algorithm "
                + ("does not merge" if merges is None else "merges, and needs the number of examples")
            )
        waits = merges is not None and merges.has(identity)
        if message.request > session.request:
            if waits:
                raise ValueError("the last contribution is not merged yet")
            if session.request and not session.replied:
                self.abandoned_exchanges += 1
            session.begin(message.request)
        if session.replied:
            self.repeated_chunks += 1
            return [session.repeat(message)]
        session.place(message)
        if not session.is_complete or waits:
            return []
        if merges is not None and isinstance(message, CenterContribution):
            merges.contribute(identity, session, message.examples, now)
            return []
        reply = session.buffer()
        self._apply(center, session.values(), reply)
        replies = session.reply(reply)
        session.release(is_answer=True)
        return replies

    def closes_at(self, now: float) -> float:
        """Return when the open merge closes if nothing arrives until then; infinite if none is open."""
        return math.inf if self.merges is None else self.merges.closes_at(now)

    def close_merge(self, now: float) -> list[Answer]:
        """Close the open merge, which is due; return the chunks to answer, and to whom."""
        assert self.merges is not None
        center = self._require_center()
        sessions = self.merges.close(center, now)
        self.applied_slices += len(sessions)
        # One copy for all: the saved answers refer to it.
        merged = self._buffers.take(center.numel())
        merged[:] = center.numpy()
        answers: list[Answer] = []
        for identity, session in sessions.items():
            answers += [(identity, chunk) for chunk in session.reply(merged)]
            session.release(is_answer=False)
        return [answer for answer in answers if answer[0] in self._sessions]

    def read(self, message: CenterRead) -> CenterValues:
        """Return a copy of the center's current values."""
        center = self._require_center().numpy()
        if not self.start <= message.start < message.stop <= self.stop:
            raise ValueError(
                f"elements {message.start} to {message.stop} are outside {self.start} to {self.stop}"
            )
        values = center[message.start - self.start : message.stop - self.start].copy()
        return CenterValues(message.request, message.start, len(values), False, _PLAIN.encode(values))

    def copy_values(self) -> Float32Array | None:
        """Return a copy of the current slice.

        Returns None before its first value.
        """
        return None if self.values is None else self.values.numpy().copy()

    def forget(self, token: str) -> int:
        """End a dead trainer's sessions, and refuse its later messages.

        Returns the most slices that were applied without the trainer's knowledge: those whose answer was
        not followed by another request.
        """
        self._dead_trainers.add(token)
        if self.merges is not None:
            self.merges.forget(token)
        ended = [
            self._sessions.pop(identity) for identity in list(self._sessions) if token_of(identity) == token
        ]
        self.reference_bytes -= sum(session.reference_bytes for session in ended)
        return sum(session.replied for session in ended)

    def _require_center(self) -> torch.Tensor:
        if self.values is None:
            raise ValueError("the center has no initial value yet")
        return self.values

    def _apply(self, center: torch.Tensor, values: Float32Array, reply: Float32Array) -> None:
        """Apply the rule to the whole slice, and write its answer to `reply`.

        `reply` may be `values` itself. The rule is applied part by part, so that its temporary tensors stay
        in the cache, and nothing of the slice's length is allocated, which would cost a page fault every
        4 KiB.
        """
        sent, taken = torch.from_numpy(values), torch.from_numpy(reply)
        for start in range(0, len(values), RULE_ELEMENTS):
            part = slice(start, start + RULE_ELEMENTS)
            taken[part] = self._rule(center[part], sent[part])
        self.applied_slices += 1

    def _add_seed(self, identity: bytes) -> None:
        values = self._seeds.pop(identity).values
        self._seeders.add(identity)
        if self._seed_sum is None:
            self._seed_sum = values
        else:
            self._seed_sum += values
        if not self._many_seeds:
            self.seed_mean()


class _Seed:
    """A first value of the slice, as far as it has arrived."""

    def __init__(self, start: int, values: Float32Array) -> None:
        self._start, self.values = start, values
        self._arrived: dict[int, int] = {}

    @property
    def is_complete(self) -> bool:
        return sum(self._arrived.values()) == len(self.values)

    def place(self, message: CenterSeed) -> None:
        """Copy a chunk that has not arrived yet."""
        start, values = message.start, message.values
        offset = start - self._start
        if offset < 0 or len(values) == 0 or offset + len(values) > len(self.values):
            stop = self._start + len(self.values)
            raise ValueError(
                f"{len(values)} elements from {start} are outside the slice {self._start} to {stop}"
            )
        if has_arrived(self._arrived, start, len(values)):
            return
        require_finite(values, start)
        self.values[offset : offset + len(values)] = values
        self._arrived[start] = len(values)


def _empty(elements: int) -> Float32Array:
    try:
        return np.empty(elements, dtype=np.float32)
    except (MemoryError, ValueError) as error:
        raise ValueError(f"a slice of {elements} elements does not fit into memory") from error
