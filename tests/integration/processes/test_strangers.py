"""Whoever reaches a job's sockets, and is none of its nodes: nothing of what it sends changes anything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import zmq
from shadowsync.nodes.worker import embedding_client
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.center_messages import CenterSeed
from shadowsync.pipeline.wire.control.base import encode_body
from shadowsync.pipeline.wire.control.messages import ChildExited, Hello
from shadowsync.pipeline.wire.messages import Credit, Failure, Lookup, Push, RequestMessage
from shadowsync.pipeline.wire.rpc.retransmission import RetransmitPolicy
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection, Listener
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.sync.center_messages import exchange_of

SLICE = np.full(8, 7.0, np.float32)


class Stranger(threading.Thread):
    """Sends messages to every node from the moment on that it listens, until it is told to end.

    Attributes:
        answers: what came back, by role.
    """

    def __init__(self, endpoints: Callable[[], dict[str, str]], messages: dict[str, list[Message]]) -> None:
        super().__init__(name="stranger")
        self._endpoints, self._messages = endpoints, messages
        self._ended = threading.Event()
        self.replies: dict[str, list[Message]] = {role: [] for role in messages}
        self.error: BaseException | None = None

    def run(self) -> None:
        """See the class."""
        connections: dict[str, Connection] = {}
        with zmq.Context() as context:
            try:
                while not self._ended.wait(0.01):
                    for role, endpoint in self._endpoints().items():
                        if role in self._messages and role not in connections:
                            connections[role] = Connection(context, endpoint, "stranger/0")
                    for role, connection in connections.items():
                        for message in self._messages[role]:
                            connection.send(message)
                        while (reply := connection.receive()) is not None:
                            self.replies[role].append(reply)
            finally:
                for connection in connections.values():
                    connection.socket.close(linger=0)

    def end(self) -> None:
        """End it."""
        self._ended.set()
        self.join(60.0)


@contextmanager
def strangers(own: InProcessCluster, messages: dict[str, list[Message]]) -> Iterator[Stranger]:
    """One who sends these messages to a node of each role while the block lasts."""

    def endpoints() -> dict[str, str]:
        found = {role: nodes[0].settings.listen_at() for role, nodes in tuple(own.nodes.items()) if nodes}
        return found | ({"coordinator": own.endpoint} if own.endpoint else {})

    stranger = Stranger(endpoints, messages)
    stranger.start()
    try:
        yield stranger
    finally:
        stranger.end()


def hostile(seed: int) -> dict[str, list[Message]]:
    """To take batches, to train them in others' place, to be the center's first value, to end the job."""
    batches = [BatchId(0, span, number, seed) for span in range(4) for number in range(8)]
    nothing, empty = np.zeros(0, np.int32), np.zeros(0, np.float32)
    ended = ChildExited("nobody", "trainer", "exit code 0", ExitCode.OK)
    return {
        "reader": [Credit(10, 0, 0)],
        "embedding": [
            Lookup(1, np.zeros(1, np.int32)),
            *(Push(at, batch, 0, nothing, empty) for at, batch in enumerate(batches, 2)),
        ],
        "sync": [CenterSeed(1, 0, len(SLICE), 0, SLICE), exchange_of(2, 0, SLICE)],
        "coordinator": [RequestMessage(1, "exited", encode_body(ended))],
    }


def test_a_stranger_changes_nothing(in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long the machine stands still, no push is sent again.
    monkeypatch.setattr(embedding_client, "LOOKUP", RetransmitPolicy(60.0))
    answered = Slowed(1, 60.0)
    own = in_process(faults=(answered,))
    with strangers(own, hostile(own.job.run.seed)) as stranger:
        own.start()
        wait_until(lambda: all(stranger.replies.values()), "each of these nodes has answered")
        answered.release()
        wait_until(lambda: own.coordinator.poll() is not None, "the job ends")
        replies = stranger.replies
    report = own.ended()
    assert (report.examples.trained, report.examples.replayed) == (EXAMPLES, 0)
    ((repeated,),) = own.run.query("SELECT repeated FROM shards")
    assert repeated == 0
    for role in ("reader", "embedding", "sync"):
        assert replies[role], role
        for reply in replies[role]:
            assert isinstance(reply, Failure), role
            assert "not one of this job's trainers" in reply.what
        assert sum(node.refused_messages for node in report.nodes if node.role == role), role
    assert any("supervisor" in str(reply) for reply in replies["coordinator"])
    assert not any(node.refused_messages for node in report.nodes if node.role == "trainer")


def test_a_push_in_a_trainers_place_is_seen_in_the_ledger(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: were everybody heard, the trainers' own gradients would come too late, and that shows."""
    monkeypatch.setattr(Listener, "admit", lambda *_: None)
    come = Slowed(1, 60.0)
    own = in_process(faults=(come,))
    messages = hostile(own.job.run.seed)["embedding"]
    with strangers(own, {"embedding": messages}) as stranger:
        own.start()
        wait_until(lambda: len(stranger.replies["embedding"]) >= len(messages), "all of them have come")
        come.release()
        wait_until(lambda: own.coordinator.poll() is not None, "the job ends")
    assert own.wait() == ExitCode.LEDGER, own.coordinator.text()
    report = own.run.report
    broken = [identity.name for identity in report.ledger.identities if identity.holds is False]
    assert "pushes received twice ≤ sent again + returned" in broken
    assert report.examples.trained == EXAMPLES


def test_a_hello_of_another_job_ends_nobody(in_process: ClusterMaker) -> None:
    """It names the address of a living reader, as one that is started again there does."""
    own = in_process({"data": {"epochs": 10_000}}).start()
    own.wait_for_batches(20)
    (reader,) = own.nodes["reader"]
    hello = Hello("reader", "stranger", "the digest of another job", reader.settings.listen_at(), 1, "host")
    found: list[Message] = []
    with zmq.Context() as context:
        connection = Connection(context, own.endpoint, "stranger")
        connection.send(RequestMessage(1, "hello", encode_body(hello)))

        def replied() -> bool:
            found.extend([message] if (message := connection.receive()) is not None else [])
            return bool(found)

        wait_until(replied, "it is answered")
        connection.socket.close(linger=0)
    assert "the node's job differs from the coordinator's" in str(found)
    own.wait_for_batches(own.run.batches() + 20)
    own.interrupted()
    assert not [event for event in own.run.report.events if event.node == "reader-0"]
