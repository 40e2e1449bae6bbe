"""Headers as a stranger could write them, and impatient questions."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from shadowsync.pipeline.wire.rpc import channel as rpc_channel
from shadowsync.pipeline.wire.rpc.retransmission import RetransmitPolicy


@pytest.fixture
def checksummed() -> Callable[[bytes], bytes]:
    """A header frame with a right checksum around any bytes."""

    def make(body: bytes) -> bytes:
        return zlib.crc32(body).to_bytes(4, "little") + body

    return make


@pytest.fixture
def header(checksummed: Callable[[bytes], bytes]) -> Callable[[Any], bytes]:
    """A header frame with a right checksum around any value."""

    def make(parts: Any) -> bytes:
        return checksummed(msgpack.packb(parts, use_bin_type=True))

    return make


@pytest.fixture
def resend_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are asked again after 10 ms instead of a second."""
    monkeypatch.setattr(rpc_channel, "CONTROL", RetransmitPolicy(0.01))
