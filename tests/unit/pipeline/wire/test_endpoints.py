"""Where a node listens, and what it tells the others."""

from __future__ import annotations

import sys

import pytest
from shadowsync.pipeline.errors import ClusterError, JobFileError
from shadowsync.pipeline.wire.endpoints import advertised, listen_address, local_address, use_ipc


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
