"""Recovery from the death of an embedding node while the job trains.

Another one takes its place, with the rows of the newest checkpoint or with first values. Trainers send it
what the dead one had not answered. When the ledger has all that they had pushed before, the batches that are
trained and that the new shard lacks are handed out to be trained again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from ....pipeline.errors import ShadowSyncError
from ....pipeline.text.format import counted
from ....pipeline.wire.control.orders import MAX_RANGES, FindLacking, ShardReplaced
from ..ledger.records import BatchRange
from ..outcome import REQUEST_SECONDS
from ..server import CoordinatorServer
from ..state.changes import ShardRestored
from ..state.membership import Member
from .settling import offer_spans, settle
from .successors import Successors


class ShardRecovery:
    """Recover from deaths of embedding nodes. Runs on the coordinator's loop."""

    def __init__(self, server: CoordinatorServer, successors: Successors) -> None:
        self._server = server
        self._state = server.state
        self._successors = successors

    def lost(self, node: Member) -> None:
        """Wait for a replacement of an active embedding node."""
        self._server.spawn(self._require_another(node))

    def replaced(self, node: Member) -> None:
        """Begin to recover with a node that has taken a dead one's place."""
        self._server.spawn(self._recover(node))

    async def _require_another(self, dead: Member) -> None:
        """Stop the job if no replacement joins in time.

        One that has joined may take longer: it reads a checkpoint, which the server bounds.
        """
        state, members, number = self._state, self._state.members, dead.info.index

        def is_there() -> bool:
            return number not in state.empty_shards()

        def is_coming() -> bool:
            return any(node.info.index == number for node in members.joining("embedding"))

        def is_gone() -> bool:
            return self._successors.is_final(dead.info.token) and not self._successors.coming

        def is_decided() -> bool:
            return is_there() or is_coming() or is_gone()

        while state.is_training and not is_there():
            if is_coming():
                await self._server.wait_for(lambda: is_there() or not is_coming())
            elif is_gone() or not await self._server.wait_for(is_decided, state.job.run.rejoin_seconds):
                break
        if not is_there() and state.is_training:
            self._server.request_stop(state.lost_shard(dead))

    async def _recover(self, node: Member) -> None:
        server, ledger = self._server, self._state.ledger
        name, number = node.info.name, node.info.index
        began = self._state.seconds()
        replaced, unable = ShardReplaced(node.info), f"could not switch to {name}"
        trainers = self._state.members.alive("trainer")
        await asyncio.gather(*(settle(server, trainer, replaced, unable) for trainer in trainers))
        lacking = await self._lacking(node, ledger.trained_ranges())
        # A death of the node itself is another case, of its own.
        if lacking is None or not node.alive or not self._state.is_training:
            return
        count = ledger.owed.restore_shard(number, lacking)
        server.journal.decided(ShardRestored(number, tuple(lacking)))
        batches = counted(count, "batch", "batches")
        seconds = self._state.seconds() - began
        again = f"{batches} that it lacks will be trained again (found in {seconds:.1f} s)"
        server.event(name, again if count else "it lacks no trained batch")
        await offer_spans(server)
        await server.notify()

    async def _lacking(self, node: Member, trained: Iterable[BatchRange]) -> list[BatchRange] | None:
        """Return the batches that the node lacks; None without a reply."""
        waiting = list(_short_ranges(trained))
        found: list[BatchRange] = []
        while waiting:
            try:
                find = FindLacking(tuple(waiting[:MAX_RANGES]))
                reply = await self._server.call_or_raise(node, find, REQUEST_SECONDS)
            except ShadowSyncError as error:
                self._server.mark_dead(node.info.token, f"did not say what it has applied: {error}")
                return None
            found += reply.ranges
            waiting = waiting[max(1, reply.examined) :]
        return found


def _short_ranges(ranges: Iterable[BatchRange]) -> Iterator[BatchRange]:
    """Cut ranges such that what is lacking of one fits into a reply."""
    for epoch, span, start, stop in ranges:
        for first in range(start, stop, MAX_RANGES):
            yield epoch, span, first, min(first + MAX_RANGES, stop)
