"""Counts of an embedding node's service."""

from __future__ import annotations

import threading
from typing import Any

from shadowsync.nodes.embedding.server import ShardService


def counts(service: ShardService) -> dict[str, Any]:
    """The counts when the thread is done with what it was asked so far: it counts after it answers."""
    done = threading.Event()
    service.call(done.set)
    assert done.wait(60.0)
    return service.metrics()
