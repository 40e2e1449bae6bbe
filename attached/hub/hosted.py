"""Nodes that a hub hosts as threads of its process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from ...nodes.launch import make_role
from ...nodes.runtime.role import Role
from ...nodes.runtime.settings import NodeSettings
from ...pipeline.wire.endpoints import WILDCARDS, host_of
from ..node_thread import NodeThread

END_SECONDS: Final = 10.0
"""How long a hub waits for its nodes when it ends."""


def hosted_node(
    role: str, settings: NodeSettings, bound: str, index: int, token: str = ""
) -> NodeThread[Role]:
    """Make a node that joins the hub of this process.

    Args:
        role: "sync" or "embedding".
        settings: the hub's, with the job of the node.
        bound: the address that the hub is bound to.
        index: its number, for the name of the thread.
        token: its token; by default a new one.
    """
    host = host_of(settings.bind)
    join = bound
    if host in WILDCARDS:
        join = f"tcp://127.0.0.1:{bound.rpartition(':')[2]}"
    node_settings = replace(settings, join=join, bind=host, token=token or uuid4().hex, metrics_port=0)
    return NodeThread(lambda: make_role(role, settings.job), node_settings, f"{role}-{index} control")


async def end_hosted(nodes: Iterable[NodeThread[Any]]) -> None:
    """End the nodes that go on once the hub has told its members to end, and wait for all."""
    hosted = list(nodes)
    for node in hosted:
        node.end("the hub ended before the node had joined")
    await asyncio.gather(*(asyncio.to_thread(node.join, END_SECONDS) for node in hosted))
