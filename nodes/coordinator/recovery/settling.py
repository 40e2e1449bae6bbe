"""Flushing of a lost node's batches into the ledger."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from ....pipeline.errors import ClusterError
from ....pipeline.wire.control.base import Request
from ....pipeline.wire.control.orders import MoreSpans
from ....pipeline.wire.rpc_channel import RemoteError
from ..outcome import REQUEST_SECONDS
from ..server import CoordinatorServer
from ..state.membership import Member

RETRY_SECONDS: Final = 0.5

log = logging.getLogger(__name__)


async def settle(server: CoordinatorServer, trainer: Member, request: Request[Any], unable: str) -> None:
    """Repeat a request until a trainer replies, dies, or training ends.

    One that refuses is declared dead, because it was `unable`: what it has may never be settled; dead, it has
    nothing.
    """
    while trainer.alive and server.state.is_training:
        try:
            await server.call_or_raise(trainer, request, REQUEST_SECONDS)
            return
        except ClusterError as error:
            log.warning("%s", error)
            if isinstance(error.__cause__, RemoteError):
                server.mark_dead(trainer.info.token, unable)
        await asyncio.sleep(RETRY_SECONDS)


async def offer_spans(server: CoordinatorServer) -> None:
    """Notify readers of spans to read again."""
    await server.call_all(server.state.members.alive("reader"), MoreSpans(), REQUEST_SECONDS)
