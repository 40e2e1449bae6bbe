"""Recovery from the death of a reader while the job trains.

What it had delivered is trained by those who have it; when the ledger has all of that, its unfinished spans
are handed out again, without what is settled.
"""

from __future__ import annotations

import asyncio

from ....pipeline.errors import ExitCode
from ....pipeline.text.format import counted
from ....pipeline.wire.control.orders import SettleReader
from ..outcome import Stop
from ..server import CoordinatorServer
from ..state.changes import SpansReadAgain
from ..state.membership import Member
from .settling import offer_spans, settle
from .successors import Successors


class ReaderRecovery:
    """Recover from deaths of readers, one task for each. Runs on the coordinator's loop."""

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
        await asyncio.gather(*(settle(server, trainer, SettleReader(name), why) for trainer in trainers))
        if not self._state.is_training:
            return
        ledger = self._state.ledger
        spans = ledger.read_again(name)
        server.journal.decided(SpansReadAgain(name))
        seconds = self._state.seconds() - began
        trained = sum(len(ledger.skip_of(*span)) for span in spans)
        number = counted(len(spans), "unfinished span")
        text = f"{number} can be read again after {seconds:.1f} s"
        text += f", without {counted(trained, 'trained batch', 'trained batches')}"
        if not spans:
            text = "everything that it had read was trained"
        server.event(name, text)
        await offer_spans(server)
        await waiting

    async def _require_a_reader(self, dead: Member) -> None:
        """Stop the job if it has no reader, and none joins in time."""
        members = self._state.members

        def is_there() -> bool:
            return bool(members.alive("reader"))

        def is_decided() -> bool:
            coming = self._successors.coming or members.joining("reader")
            return is_there() or (self._successors.is_final(dead.info.token) and not coming)

        await self._server.wait_for(is_decided, self._state.job.run.rejoin_seconds)
        if not is_there() and self._state.is_training:
            name = dead.info.name
            text = f"{name}, the last reader, died; its undelivered batches were not trained"
            self._server.request_stop(Stop("death", text, ExitCode.STOPPED_BY_DEATH))
