"""When nodes of one machine may share memory."""

from __future__ import annotations

import pytest
from shadowsync.pipeline.config.network import NetworkSection


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, True),
        ({"transport": "ipc"}, True),
        ({"delay": "5ms"}, True),
        ({"delay": "5ms", "delay_links": "all"}, False),
        ({"delay_links": "all"}, True),
        ({"transport": "tcp"}, False),
        ({"shared_memory": False}, False),
    ],
)
def test_a_network_that_is_to_be_measured_is_used(settings: dict[str, object], shares: bool) -> None:
    assert NetworkSection.model_validate(settings).shares_memory is shares
