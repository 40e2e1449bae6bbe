"""A ZeroMQ context whose end is bounded, headers as a stranger could write them, impatient questions."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
import zmq
from shadowsync.pipeline.wire import conversation

END_SECONDS = 10.0


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A context; a socket that the test left open fails it here instead of hanging."""
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    yield made
    ending = threading.Thread(target=made.term, daemon=True)
    ending.start()
    ending.join(END_SECONDS)
    assert not ending.is_alive(), "a socket was left open"


@pytest.fixture
def checksummed() -> Callable[[bytes], bytes]:
    """A header frame with a right checksum around any bytes."""

    def make(body: bytes) -> bytes:
        return zlib.crc32(body).to_bytes(4, "little") + body

    return make


@pytest.fixture
def header(checksummed: Callable[[bytes], bytes]) -> Callable[[Any], bytes]:
    """A header frame with a right checksum around any value."""

    def make(parts: Any) -> bytes:
        return checksummed(msgpack.packb(parts, use_bin_type=True))

    return make


@pytest.fixture
def resend_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are asked again after 10 ms instead of a second."""
    monkeypatch.setattr(conversation, "RESEND_SECONDS", 0.01)
