"""Counts of a service on a thread of its own: of an embedding node, or of a sync node."""

from __future__ import annotations

import threading
from typing import Any

from shadowsync.nodes.embedding.server import ShardService
from shadowsync.nodes.sync.role import CenterService


def counts(service: ShardService | CenterService) -> dict[str, Any]:
    """The counts when the thread is done with what it was asked so far: it counts after it answers."""
    done = threading.Event()
    service.call(done.set)
    assert done.wait(60.0)
    return service.metrics()
