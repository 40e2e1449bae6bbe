"""Recovery from the death of a reader, and admission of readers to a running job.

What a dead reader had delivered is trained by those who have it; when the ledger has all of that, its
unfinished spans are handed out again, without what is settled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ...pipeline.errors import ExitCode
from ...pipeline.wire.control_orders import Begin, ConnectPeers, MoreSpans, ReaderJoined, SettleReader
from .membership import Member
from .outcome import REQUEST_SECONDS, Stop
from .server import CoordinatorServer
from .state import JobPhase

RETRY_SECONDS: Final = 0.5

log = logging.getLogger(__name__)


class ReaderRecovery:
    """Recover from deaths of readers, one task for each. Runs on the coordinator's loop.

    Args:
        admitting: held while a node is admitted, so that the next one is told of it.
    """

    def __init__(self, server: CoordinatorServer, admitting: asyncio.Lock) -> None:
        self._server = server
        self._admitting = admitting
        self._nobody_comes = asyncio.Event()

    @property
    def _training(self) -> bool:
        state = self._server.state
        return state.phase is JobPhase.TRAINING and state.stop is None

    def lost(self, node: Member) -> None:
        """Begin to recover from the death of a reader; nothing happens while the job does not train."""
        if node.info.role == "reader" and self._training:
            self._server.spawn(self._recover(node))

    def admit(self, reader: Member) -> None:
        """Introduce a reader that is ready to the others, and have it read."""
        self._server.spawn(self._admit(reader))

    def expect(self, *, another: bool) -> None:
        """Say whether another reader is started in the place of one that died.

        If not, a job without a reader stops at once.
        """
        if another:
            self._nobody_comes.clear()
        else:
            self._nobody_comes.set()

    async def _recover(self, reader: Member) -> None:
        server, name = self._server, reader.info.name
        began = server.state.seconds()
        waiting = server.spawn(self._require_a_reader(name))
        trainers = server.state.members.alive("trainer")
        await asyncio.gather(*(self._settle(trainer, name) for trainer in trainers))
        if not self._training:
            return
        ledger = server.state.ledger
        spans = ledger.read_again(name)
        seconds = server.state.seconds() - began
        trained = sum(len(ledger.skip_of(*span)) for span in spans)
        number = f"{len(spans)} unfinished span{'s' * (len(spans) != 1)}"
        text = f"{number} of it can be read again after {seconds:.1f} s"
        text += f", without {trained} batches that are trained"
        if not spans:
            text = "all that it had read is trained"
        server.event(name, text)
        await server.call_all(server.state.members.alive("reader"), MoreSpans(), REQUEST_SECONDS)
        await waiting

    async def _settle(self, trainer: Member, reader: str) -> None:
        """Wait until a trainer has nothing unsettled of a reader, or is dead itself."""
        server, name = self._server, trainer.info.name
        while trainer.alive and self._training:
            if await server.call(trainer, SettleReader(reader), REQUEST_SECONDS) is not None:
                return
            if (unmet := server.unmet.get(name)) is not None:
                server.request_stop(Stop("failed", f"{name}: {unmet}", unmet.exit_code))
            await asyncio.sleep(RETRY_SECONDS)

    async def _require_a_reader(self, dead: str) -> None:
        """Stop the job if it has no reader, and none joins in time."""
        server = self._server
        limit = server.state.job.run.rejoin_seconds

        def is_there() -> bool:
            return any(reader.ready for reader in server.state.members.alive("reader"))

        found = asyncio.ensure_future(server.wait_for(is_there, limit))
        gone = asyncio.ensure_future(self._nobody_comes.wait())
        try:
            await asyncio.wait({found, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            found.cancel()
            gone.cancel()
        if not is_there() and self._training:
            text = f"{dead} died, the last reader; the batches that it had not delivered are untrained"
            server.request_stop(Stop("death", text, ExitCode.STOPPED_BY_DEATH))

    async def _admit(self, reader: Member) -> None:
        async with self._admitting:
            await self._introduce(reader)

    async def _introduce(self, reader: Member) -> None:
        server, state = self._server, self._server.state
        infos = tuple(member.info for member in state.members.alive())
        # The reader first: it accepts nothing of a trainer that it has not been told of.
        met = await server.call(reader, ConnectPeers(infos, state.group.view), REQUEST_SECONDS)
        if met is None:
            server.mark_dead(reader.info.token, "did not connect to the others")
            return
        await server.call_all(state.members.alive("trainer"), ReaderJoined(reader.info), REQUEST_SECONDS)
        if await server.call(reader, Begin(), REQUEST_SECONDS) is not None:
            server.event(reader.info.name, "joined the running job")
