"""Recovery from the death of a reader while the job trains.

What it had delivered is trained by those who have it; when the ledger has all of that, its unfinished spans
are handed out again, without what is settled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ...pipeline.errors import ClusterError, ExitCode
from ...pipeline.wire.control_orders import MoreSpans, SettleReader
from ...pipeline.wire.rpc_channel import RemoteError
from .membership import Member
from .outcome import REQUEST_SECONDS, Stop
from .server import CoordinatorServer

RETRY_SECONDS: Final = 0.5

log = logging.getLogger(__name__)


class ReaderRecovery:
    """Recover from deaths of readers, one task for each. Runs on the coordinator's loop."""

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server
        self._state = server.state
        # Tokens of readers that no other is started for, of those being started, and whose place each takes.
        self._final: set[str] = set()
        self._starting: set[str] = set()
        self._before: dict[str, str] = {}

    def lost(self, node: Member) -> None:
        """Begin to recover from the death of a reader; nothing happens while the job does not train."""
        if node.info.role == "reader" and node.begun and self._state.is_training:
            self._server.spawn(self._recover(node))

    def exited(self, token: str, successor: str) -> None:
        """Record that a reader of the supervisor's has ended, and which one is started in its place.

        `successor` is that one's token, or empty. Without any that lives or is started the job stops at once.
        """
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
        """Record that a reader has said hello."""
        self._starting.discard(token)

    async def _recover(self, reader: Member) -> None:
        server, name = self._server, reader.info.name
        began = self._state.seconds()
        waiting = server.spawn(self._require_a_reader(reader))
        trainers = self._state.members.alive("trainer")
        await asyncio.gather(*(self._settle(trainer, name) for trainer in trainers))
        if not self._state.is_training:
            return
        ledger = self._state.ledger
        spans = ledger.read_again(name)
        seconds = self._state.seconds() - began
        trained = sum(len(ledger.skip_of(*span)) for span in spans)
        number = f"{len(spans)} unfinished span{'s' * (len(spans) != 1)}"
        text = f"{number} of it can be read again after {seconds:.1f} s"
        text += f", without {trained} batches that are trained"
        if not spans:
            text = "all that it had read is trained"
        server.event(name, text)
        await server.call_all(self._state.members.alive("reader"), MoreSpans(), REQUEST_SECONDS)
        await waiting

    async def _settle(self, trainer: Member, reader: str) -> None:
        """Wait until a trainer has nothing unsettled of a reader, or is dead itself."""
        while trainer.alive and self._state.is_training:
            try:
                await self._server.call_or_raise(trainer, SettleReader(reader), REQUEST_SECONDS)
                return
            except ClusterError as error:
                log.warning("%s", error)
                if isinstance(error.__cause__, RemoteError):
                    # What it has of the reader may never be settled; dead, it has nothing.
                    why = f"could not settle what {reader} had sent it"
                    self._server.mark_dead(trainer.info.token, why)
            await asyncio.sleep(RETRY_SECONDS)

    async def _require_a_reader(self, dead: Member) -> None:
        """Stop the job if it has no reader, and none joins in time."""
        members = self._state.members

        def is_there() -> bool:
            return bool(members.alive("reader"))

        def is_decided() -> bool:
            coming = self._starting or members.joining("reader")
            return is_there() or (dead.info.token in self._final and not coming)

        await self._server.wait_for(is_decided, self._state.job.run.rejoin_seconds)
        if not is_there() and self._state.is_training:
            name = dead.info.name
            text = f"{name} died, the last reader; the batches that it had not delivered are untrained"
            self._server.request_stop(Stop("death", text, ExitCode.STOPPED_BY_DEATH))
