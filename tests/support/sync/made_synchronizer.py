"""A trainer's synchronizer as `connect_peers` makes it, of a trainer that has met nobody."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from shadowsync.nodes.shadow.synchronizer import Synchronizer
from shadowsync.pipeline.wire.control.orders import GroupView


def made_synchronizer(context: Any, algorithm: Any) -> Synchronizer:
    """One of a replica and an algorithm, or of what stands for them; its thread does not run."""

    async def make() -> Synchronizer:
        node = SimpleNamespace(zmq_context=None, index=0, token="token-trainer-0", fail=None)
        return Synchronizer(context, algorithm, cast(Any, node), [], None, GroupView(0, ()))

    return asyncio.run(make())
