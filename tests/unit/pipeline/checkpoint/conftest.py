"""The stores of servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from shadowsync.pipeline.checkpoint.store.addresses import open_store
from shadowsync.pipeline.checkpoint.store.contract import Store
from shadowsync.tests.support.outside.object_servers import SERVERS


@pytest.fixture
def server_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    """Makes the store of an empty prefix of a bucket, by the scheme of its server."""
    with ExitStack() as ends:
        yield lambda scheme: open_store(ends.enter_context(SERVERS[scheme](monkeypatch, tmp_path)))
