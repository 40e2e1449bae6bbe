"""The store of a server that speaks S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from shadowsync.pipeline.checkpoint.store.addresses import open_store
from shadowsync.pipeline.checkpoint.store.contract import Store
from shadowsync.tests.support.s3_server import s3_url


@pytest.fixture
def s3_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty prefix of a bucket."""
    with s3_url(monkeypatch) as url:
        yield open_store(url)
