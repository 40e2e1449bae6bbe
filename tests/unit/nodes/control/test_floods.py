"""A control server that more messages come to than it can take: its loop does its other work meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import zmq
from shadowsync.nodes.control.cluster_state import UNKNOWN_SENDERS
from shadowsync.nodes.control.control_socket import RECEIVED_AT_ONCE
from shadowsync.nodes.coordinator.ledger.store import LedgerStore, LedgerWriter
from shadowsync.nodes.coordinator.requests import RequestHandler
from shadowsync.nodes.coordinator.server import CoordinatorServer
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.wire.control.base import encode_body
from shadowsync.pipeline.wire.control.messages import GetStatus
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.messages import ReplyMessage, RequestMessage
from shadowsync.pipeline.wire.sockets import configure_socket
from shadowsync.tests.support.coordinator.fake_coordinator import member, state_of
from shadowsync.tests.support.jobs.processes import until

TOKENS = ("token-trainer-0", "token-trainer-1")


class Sender:
    """A peer of the server, used by one thread after another."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, identity: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        configure_socket(self.socket)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt_string(zmq.IDENTITY, identity)
        self.socket.connect(endpoint)

    def flood(self, ended: threading.Event) -> None:
        """Send what is no message, until it ends."""
        while not ended.is_set():
            if self.socket.poll(100, zmq.POLLOUT):
                self.socket.send(b"x", zmq.NOBLOCK)


def served(folder: Path, work: Callable[[CoordinatorServer, list[Sender]], Awaitable[None]]) -> None:
    """Run `work` with the server of a job of two trainers, a sender as each of them, and a stranger's."""

    async def main() -> None:
        state = state_of(folder, [member("trainer", 0), member("trainer", 1)])
        store = LedgerWriter(LedgerStore(folder / "ledger.sqlite"))
        server = CoordinatorServer(NodeSettings(job=state.job), state, store)
        context = zmq.Context()
        endpoint = server.listen()
        senders = [Sender(context, endpoint, identity) for identity in (*TOKENS, "stranger")]
        requests = RequestHandler(server)
        server.start(requests.handle, requests.died)
        try:
            await asyncio.wait_for(work(server, senders), 60.0)
        finally:
            for sender in senders:
                sender.socket.close()
            context.term()
            await server.close()
            await store.close()

    asyncio.run(main())


def test_a_request_is_answered_in_the_middle_of_a_flood(tmp_path: Path) -> None:
    async def work(server: CoordinatorServer, senders: list[Sender]) -> None:
        trainer, _, stranger = senders
        ended = threading.Event()
        flooding = asyncio.create_task(asyncio.to_thread(stranger.flood, ended))
        try:
            refused = server.state.refused_messages
            await until(lambda: refused.get(UNKNOWN_SENDERS, 0) > RECEIVED_AT_ONCE, "the flood has begun")
            ask = encode(RequestMessage(1, "status", encode_body(GetStatus({}, 0, False))))
            trainer.socket.send_multipart(ask)
            await until(lambda: trainer.socket.poll(0), "an answer")
            assert isinstance(decode(trainer.socket.recv_multipart()), ReplyMessage)
        finally:
            ended.set()
            await flooding

    served(tmp_path, work)
