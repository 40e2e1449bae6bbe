"""The address of this host as another one sees it."""

from __future__ import annotations

import socket

import pytest
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.endpoints import advertised, own_address


def test_towards_this_host_it_is_the_loopback_address() -> None:
    assert own_address("tcp://127.0.0.1:5555") == "127.0.0.1"
    assert own_address("tcp://localhost:5555") in ("127.0.0.1", "[::1]")


def test_what_it_gives_can_be_connected_to() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        reported = advertised(f"tcp://0.0.0.0:{port}", "0.0.0.0", own_address("tcp://127.0.0.1:1"))
        host, _, number = reported.removeprefix("tcp://").rpartition(":")
        socket.create_connection((host, int(number)), timeout=60).close()


def test_towards_anywhere_it_is_one_of_this_hosts() -> None:
    try:
        own = own_address()
    except ClusterError:
        pytest.skip("this host has no route to anywhere")
    with socket.socket() as listener:
        listener.bind((own, 0))


def test_an_ipv6_address_is_put_in_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        own = own_address("tcp://[::1]:5555")
    except ClusterError:
        pytest.skip("this host has no IPv6 loopback address")
    assert own == "[::1]"


def test_an_unknown_host_is_told_with_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ClusterError) as caught:
        own_address("tcp://coordinator:5555")
    assert str(caught.value) == (
        "tcp://coordinator:5555: this host's address on the route to it cannot be found "
        "(Name or service not known); "
        "give the address that other hosts reach with --advertise"
    )
