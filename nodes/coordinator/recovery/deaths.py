"""Recovery from deaths of readers, embedding nodes and the last trainer during training.

Trainers train the batches that a dead reader had delivered. When the ledger has all of them, its unfinished
spans are handed out again, without the settled batches.

A dead embedding node is replaced by another, with the rows of the newest checkpoint or with first values.
Trainers resend the requests that the dead node had not answered. When the ledger has all that they had pushed
before, the trained batches that the new shard lacks are handed out to be trained again.

If no trainer lives, the job waits for one, which takes the weights from the center. Readers hand out the dead
trainers' batches again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from ....pipeline.errors import ExitCode, ShadowSyncError
from ....pipeline.text.format import counted, duration
from ....pipeline.wire.control.base import Request
from ....pipeline.wire.control.orders import MAX_RANGES, DrainReader, FindLacking, MoreSpans, ShardReplaced
from ...control.membership import Member
from ...control.server import REQUEST_SECONDS
from ..ledger.records import BatchRange
from ..server import CoordinatorServer
from ..state.changes import ShardRestored, SpansReadAgain
from ..state.outcome import Stop
from ..state.verdicts import lost_shard, lost_trainers

log = logging.getLogger(__name__)


class Successors:
    """The dead nodes of one role, and their successors.

    The supervisor says which dead node a new one replaces. A state machine without I/O. Owned by the
    coordinator's loop.
    """

    def __init__(self) -> None:
        # Dead nodes that get no replacement.
        self._final: set[str] = set()
        # Replacements being started.
        self._starting: set[str] = set()
        # The node that each replaces.
        self._before: dict[str, str] = {}

    @property
    def coming(self) -> bool:
        """Whether a node is being started that has not said hello."""
        return bool(self._starting)

    def exited(self, token: str, successor: str) -> None:
        """Record that a node ended, with its replacement's token if any."""
        self._starting.discard(token)
        if successor:
            self._starting.add(successor)
            self._before[successor] = token
            return
        place: str | None = token
        while place is not None:
            self._final.add(place)
            place = self._before.get(place)

    def arrived(self, token: str) -> None:
        """Record that a node has said hello."""
        self._starting.discard(token)

    def is_final(self, token: str) -> bool:
        """Return whether no replacement is on its way."""
        return token in self._final


async def ask_until_answered(
    server: CoordinatorServer, trainer: Member, request: Request[Any], unable: str
) -> None:
    """Repeat a request until a trainer replies, dies, or training ends.

    A trainer that refuses is declared dead because it was `unable`: otherwise its batches might never be
    settled.
    """
    await server.call_until_answered(trainer, request, unable, lambda: server.state.lifecycle.is_training)


async def another_is_there(server: CoordinatorServer, successors: Successors, dead: Member) -> bool:
    """Wait for a living node of the dead one's role; return whether one lives.

    Does not wait for longer than `run.rejoin_seconds`, nor once the supervisor starts no other.
    """
    members, role = server.state.members, dead.info.role

    def is_there() -> bool:
        return bool(members.alive(role))

    def is_decided() -> bool:
        coming = successors.coming or members.joining(role)
        return is_there() or (successors.is_final(dead.info.token) and not coming)

    await server.wait_for(is_decided, server.state.job.run.rejoin_seconds)
    return is_there()


async def offer_spans(server: CoordinatorServer) -> None:
    """Notify readers of spans to read again."""
    await server.call_all(server.state.members.alive("reader"), MoreSpans(), REQUEST_SECONDS)


class ReaderRecovery:
    """Recovery from deaths of readers, one task each, on the coordinator's loop."""

    def __init__(self, server: CoordinatorServer, successors: Successors) -> None:
        self._server = server
        self._state = server.state
        self._successors = successors

    def lost(self, node: Member) -> None:
        """Start recovery from the death of an active reader."""
        self._server.spawn(self._recover(node))

    async def _recover(self, reader: Member) -> None:
        server, name = self._server, reader.info.name
        began = self._state.seconds()
        waiting = server.spawn(self._require_a_reader(reader))
        trainers = self._state.members.alive("trainer")
        why = f"could not finish the batches of {name}"
        await asyncio.gather(
            *(ask_until_answered(server, trainer, DrainReader(name), why) for trainer in trainers)
        )
        if not self._state.lifecycle.is_training:
            return
        ledger = self._state.ledger
        spans = ledger.read_again(name)
        server.journal.decided(SpansReadAgain(name))
        seconds = self._state.seconds() - began
        trained = sum(len(ledger.skip_of(*span)) for span in spans)
        number = counted(len(spans), "unfinished span")
        text = f"{number} can be read again after {duration(seconds)}"
        text += f", without {counted(trained, 'trained batch', 'trained batches')}"
        if not spans:
            text = "everything that it had read was trained"
        server.event(name, text)
        await offer_spans(server)
        await waiting

    async def _require_a_reader(self, dead: Member) -> None:
        """Stop the job if it has no reader, and none joins in time."""
        has_successor = await another_is_there(self._server, self._successors, dead)
        if not has_successor and self._state.lifecycle.is_training and not self._state.ledger.complete:
            name = dead.info.name
            text = f"{name}, the last reader, died; its undelivered batches were not trained"
            self._server.request_stop(Stop("death", text, ExitCode.STOPPED_BY_DEATH))


class TrainerRecovery:
    """Recovery from the death of the last trainer, on the coordinator's loop.

    While others live they get its batches, and nothing is to be done here.
    """

    def __init__(self, server: CoordinatorServer, successors: Successors) -> None:
        self._server = server
        self._state = server.state
        self._successors = successors

    def lost(self, node: Member) -> None:
        """Wait for another trainer, if there is none."""
        if not self._state.members.alive("trainer"):
            self._server.spawn(self._require_a_trainer(node))

    async def _require_a_trainer(self, dead: Member) -> None:
        """Stop the job if no trainer joins in time."""
        if (
            not await another_is_there(self._server, self._successors, dead)
            and self._state.lifecycle.is_training
        ):
            self._server.request_stop(lost_trainers())


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
        """Start recovery with the replacement of a dead node."""
        self._server.spawn(self._recover(node))

    async def _require_another(self, dead: Member) -> None:
        """Stop the job if no replacement joins in time.

        A replacement that has joined may take longer: it reads a checkpoint, and the server limits that time.
        """
        state, members, number = self._state, self._state.members, dead.info.index

        def is_there() -> bool:
            return number not in state.vacancies.empty_shards()

        def is_coming() -> bool:
            return any(node.info.index == number for node in members.joining("embedding"))

        def is_gone() -> bool:
            return self._successors.is_final(dead.info.token) and not self._successors.coming

        def is_decided() -> bool:
            return is_there() or is_coming() or is_gone()

        while state.lifecycle.is_training and not is_there():
            if is_coming():
                await self._server.wait_for(lambda: is_there() or not is_coming())
            elif is_gone() or not await self._server.wait_for(is_decided, state.job.run.rejoin_seconds):
                break
        if not is_there() and state.lifecycle.is_training:
            self._server.request_stop(lost_shard(dead, state.lifecycle.phase))

    async def _recover(self, node: Member) -> None:
        server, ledger = self._server, self._state.ledger
        name, number = node.info.name, node.info.index
        began = self._state.seconds()
        replaced, unable = ShardReplaced(node.info), f"could not switch to {name}"
        trainers = self._state.members.alive("trainer")
        await asyncio.gather(*(ask_until_answered(server, trainer, replaced, unable) for trainer in trainers))
        lacking = await self._lacking(node, ledger.trained_ranges())
        # If the replacement itself died, its own recovery handles that.
        if lacking is None or not node.alive or not self._state.lifecycle.is_training:
            return
        count = ledger.owed.restore_shard(number, lacking)
        server.journal.decided(ShardRestored(number, tuple(lacking)))
        batches = counted(count, "batch", "batches")
        seconds = self._state.seconds() - began
        again = f"{batches} that it lacks will be trained again (found in {duration(seconds)})"
        server.event(name, again if count else "it has every trained batch")
        await offer_spans(server)
        await server.notify()

    async def _lacking(self, node: Member, trained: Iterable[BatchRange]) -> list[BatchRange] | None:
        """Return the batches that the node lacks; None without a reply."""
        waiting = list(_short_ranges(trained))
        ranges: list[BatchRange] = []
        while waiting:
            try:
                find = FindLacking(tuple(waiting[:MAX_RANGES]))
                reply = await self._server.call_or_raise(node, find, REQUEST_SECONDS)
            except ShadowSyncError as error:
                self._server.mark_dead(node.info.token, f"did not say what it has applied: {error}")
                return None
            ranges += reply.ranges
            waiting = waiting[max(1, reply.examined) :]
        return ranges


def _short_ranges(ranges: Iterable[BatchRange]) -> Iterator[BatchRange]:
    """Cut ranges such that the lacking batches of one fit into a reply."""
    for epoch, span, start, stop in ranges:
        for first in range(start, stop, MAX_RANGES):
            yield epoch, span, first, min(first + MAX_RANGES, stop)
