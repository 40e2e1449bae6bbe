"""A connection of somebody who has no key."""

from __future__ import annotations

import socket


def connect_without_key(endpoint: str) -> bytes:
    """Greets as one without a key (ZMTP 3.1, NULL); gives what comes after the greeting in answer."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60.0) as connection:
        connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32))
        whole = b""
        while part := connection.recv(4096):
            whole += part
    return whole[64:]
