"""What unit tests of sockets share."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq

END_SECONDS = 60.0


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A context; a socket that the test left open fails it here instead of hanging."""
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    yield made
    ending = threading.Thread(target=made.term, daemon=True)
    ending.start()
    ending.join(END_SECONDS)
    assert not ending.is_alive(), "a socket was left open"
