"""What unit tests of sockets and of the ledger's file share."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zmq
from shadowsync.nodes.coordinator.ledger import store

END_SECONDS = 60.0


@pytest.fixture(autouse=True)
def databases_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a test opened of SQLite: from Python 3.13 on it warns of a connection that nobody closed."""
    opened: list[sqlite3.Connection] = []
    threads: list[ThreadPoolExecutor] = []
    connect = sqlite3.connect

    def connect_and_keep(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **options))
        return opened[-1]

    def thread_and_keep(*args: Any, **options: Any) -> ThreadPoolExecutor:
        threads.append(ThreadPoolExecutor(*args, **options))
        return threads[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_and_keep)
    monkeypatch.setattr(store, "ThreadPoolExecutor", thread_and_keep)
    yield
    # A connection that is closed while another thread writes through it ends the process.
    for thread in threads:
        thread.shutdown()
    for connection in opened:
        connection.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A context; a socket that the test left open fails it here instead of hanging."""
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    yield made
    ending = threading.Thread(target=made.term, daemon=True)
    ending.start()
    ending.join(END_SECONDS)
    assert not ending.is_alive(), "a socket was left open"
