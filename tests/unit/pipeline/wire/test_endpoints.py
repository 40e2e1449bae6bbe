"""Where a node listens, what it tells the others, and its address as another host sees it."""

from __future__ import annotations

import socket
import sys

import pytest
from shadowsync.pipeline.errors import ClusterError, JobFileError
from shadowsync.pipeline.wire.endpoints import advertised, listen_address, local_address, own_address, use_ipc


@pytest.mark.parametrize(
    ("bind", "address"),
    [
        ("127.0.0.1", "tcp://127.0.0.1:*"),
        ("127.0.0.1:5000", "tcp://127.0.0.1:5000"),
        ("127.0.0.1:*", "tcp://127.0.0.1:*"),
        ("tcp://127.0.0.1:5000", "tcp://127.0.0.1:5000"),
        ("eth0", "tcp://eth0:*"),
        ("0.0.0.0", "tcp://0.0.0.0:*"),
        ("*", "tcp://*:*"),
        ("[::1]", "tcp://[::1]:*"),
        ("::1", "tcp://::1:*"),
        ("[::1]:5000", "tcp://[::1]:5000"),
    ],
)
def test_the_port_is_any_unless_given(bind: str, address: str) -> None:
    assert listen_address(bind) == address


def test_a_given_port_is_for_hosts_without_their_own() -> None:
    assert listen_address("127.0.0.1", 7000) == "tcp://127.0.0.1:7000"
    assert listen_address("127.0.0.1:5000", 7000) == "tcp://127.0.0.1:5000"


@pytest.mark.parametrize("bind", ["127.0.0.1:65536", "tcp://*:99999", "[::1]:123456789012"])
def test_a_port_that_cannot_be_is_refused(bind: str) -> None:
    with pytest.raises(ClusterError, match=r"there is no port \d+; give one up to 65535 with --bind"):
        listen_address(bind)
    assert listen_address("127.0.0.1:65535") == "tcp://127.0.0.1:65535"


@pytest.mark.parametrize(
    ("endpoint", "bind", "advertise", "reported"),
    [
        ("tcp://127.0.0.1:5555", "127.0.0.1", "", "tcp://127.0.0.1:5555"),
        ("tcp://10.0.0.7:5555", "eth0", "", "tcp://10.0.0.7:5555"),
        ("tcp://0.0.0.0:5555", "0.0.0.0", "trainer.example", "tcp://trainer.example:5555"),
        ("tcp://127.0.0.1:5555", "127.0.0.1", "10.0.0.7", "tcp://10.0.0.7:5555"),
        ("tcp://[::1]:5555", "[::1]", "", "tcp://[::1]:5555"),
        # Behind a mapped port, or written as a whole address.
        ("tcp://0.0.0.0:5555", "0.0.0.0", "trainer.example:7000", "tcp://trainer.example:7000"),
        ("tcp://0.0.0.0:5555", "0.0.0.0", "tcp://trainer.example:7000", "tcp://trainer.example:7000"),
        ("tcp://0.0.0.0:5555", "0.0.0.0", "tcp://trainer.example", "tcp://trainer.example:5555"),
    ],
)
def test_others_are_told_what_they_can_reach(endpoint: str, bind: str, advertise: str, reported: str) -> None:
    assert advertised(endpoint, bind, advertise) == reported


@pytest.mark.parametrize("bind", ["0.0.0.0", "*", "0.0.0.0:5555", "*:5555", "tcp://0.0.0.0:5555", "[::]"])
def test_all_addresses_are_none_to_tell(bind: str) -> None:
    with pytest.raises(ClusterError, match=r"listens on all addresses.*--advertise"):
        advertised("tcp://0.0.0.0:5555", bind, "")
    assert advertised("tcp://0.0.0.0:5555", bind, "10.0.0.7") == "tcp://10.0.0.7:5555"


@pytest.mark.parametrize(
    ("transport", "bind", "one_machine", "ipc"),
    [
        ("auto", "127.0.0.1", True, True),
        # Nodes that others join by TCP, or whose user chose an address.
        ("auto", "127.0.0.1", False, False),
        ("auto", "10.0.0.7", True, False),
        ("auto", "127.0.0.1:5000", True, False),
        ("tcp", "127.0.0.1", True, False),
        ("ipc", "127.0.0.1", False, True),
    ],
)
def test_ipc_is_for_one_linux_machine(
    monkeypatch: pytest.MonkeyPatch, transport: str, bind: str, one_machine: bool, ipc: bool
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert use_ipc(transport, bind, one_machine=one_machine) is ipc
    monkeypatch.setattr(sys, "platform", "darwin")
    if transport == "ipc":
        with pytest.raises(JobFileError, match="it needs Linux"):
            use_ipc(transport, bind, one_machine=one_machine)
    else:
        assert not use_ipc(transport, bind, one_machine=one_machine)


def test_an_ipc_address_is_told_as_it_is() -> None:
    assert local_address("a1") != local_address("a2")
    # A file of that name would stay behind after a kill.
    assert local_address("a1").startswith("ipc://@")
    assert advertised(local_address("a1"), "127.0.0.1", "10.0.0.7") == local_address("a1")


def test_what_stands_before_an_ipc_address_is_told_in_its_place() -> None:
    assert advertised(local_address("a1"), "127.0.0.1", local_address("a2")) == local_address("a2")


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
