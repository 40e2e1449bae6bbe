"""Service threads for the tests of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import zmq
from shadowsync.nodes.sync.center import CenterState
from shadowsync.nodes.sync.role import CenterService
from shadowsync.pipeline.codecs.formats import LinkCodecs
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.pipeline.wire.sockets import Listener
from shadowsync.sync_algos.easgd import EASGD, ElasticOptions

SyncNode = tuple[CenterService, MemberInfo]


@pytest.fixture
def failures() -> Iterator[list[BaseException]]:
    """What service threads fail with; a test that expects none need not look."""
    found: list[BaseException] = []
    yield found
    assert not found


@pytest.fixture
def sync_nodes(
    context: zmq.Context[zmq.Socket[bytes]], failures: list[BaseException]
) -> Iterator[Callable[..., list[SyncNode]]]:
    """Starts sync nodes' service threads for EASGD with an elastic rate; they end with the test."""
    started: list[CenterService] = []

    def start(count: int, alpha: float, codecs: LinkCodecs | None = None) -> list[SyncNode]:
        nodes = []
        for index in range(count):
            listener = Listener(context, "tcp://127.0.0.1:0")
            state = CenterState(EASGD(ElasticOptions(alpha)).center_rule, codecs)
            service = CenterService(listener, state, failures.append)
            member = MemberInfo(f"sync-{index}", "sync", index, f"token-{index}", listener.endpoint)
            service.start()
            started.append(service)
            nodes.append((service, member))
        return nodes

    yield start
    for service in started:
        service.stop()
    for service in started:
        assert service.join(60.0)
