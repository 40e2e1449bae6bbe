"""A trainer's link to sync nodes on the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
import zmq
from shadowsync.nodes.shadow.center_client import CenterClient
from shadowsync.nodes.sync.center import Rule
from shadowsync.pipeline.codecs.formats import LinkCodecs

from .fake_center import FakeCenter

ENOUGH_SECONDS = 60.0


@asynccontextmanager
async def fake_link(
    context: zmq.Context[zmq.Socket[bytes]],
    rule: Rule,
    numel: int,
    chunk_elements: int,
    *,
    nodes: int = 1,
    timeout_seconds: float = ENOUGH_SECONDS,
    codecs: LinkCodecs | None = None,
    deltas: bool = False,
    **options: Any,
) -> AsyncIterator[tuple[CenterClient, list[FakeCenter]]]:
    """A link, and the nodes that it leads to: their slices are all zeros, and they have heard nothing."""
    fakes = [FakeCenter(context, rule, index=index, codecs=codecs, deltas=deltas) for index in range(nodes)]
    link = CenterClient(
        context,
        [fake.member for fake in fakes],
        numel,
        "a/shadow",
        chunk_bytes=4 * chunk_elements,
        timeout_seconds=timeout_seconds,
        codecs=codecs,
        deltas=deltas,
        **options,
    )
    try:
        await link.seed(torch.zeros(numel))
        for fake in fakes:
            fake.heard.clear()
        async with asyncio.timeout(ENOUGH_SECONDS):
            yield link, fakes
    finally:
        link.close()
        for fake in fakes:
            await fake.close()
