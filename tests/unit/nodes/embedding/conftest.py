"""Embedding nodes for their tests."""

from __future__ import annotations

from functools import partial

import pytest
from shadowsync.tests.support.tables.embedding_node import Context, Serving, running


@pytest.fixture
def serving(context: Context, failures: list[BaseException]) -> Serving:
    """Runs the embedding node of a job, of one index."""
    return partial(running, context, failures)
