"""Kafka brokers that ask for TLS and a user: a relay in front of librdkafka's mock, which has neither.

The relay ends TLS and answers the log-in itself. The mock names its own port in its answers, so the relay
writes its port in its place; both are 4 bytes.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .broker import Broker

HOST = "127.0.0.1"
# Numbers of requests, and of the error by which a broker refuses a user (Kafka's protocol guide).
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
SASL_AUTHENTICATION_FAILED = 58
UNSUPPORTED_VERSION = 35


@dataclass(frozen=True)
class Certificates:
    """Files of a certificate authority, and of a server and a client that it signed.

    Attributes:
        other_ca: the certificate of an authority that signed nothing here.
    """

    ca: str
    other_ca: str
    server: tuple[str, str]
    client: tuple[str, str]

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        """Make them, valid for two days."""
        for name in ("ca", "other"):
            _openssl(folder, "req", "-x509", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem",
                     "-days", "2", "-subj", f"/CN={name}")  # fmt: skip
        (folder / "names").write_text(f"subjectAltName=IP:{HOST}\n", encoding="ascii")
        for name in ("server", "client"):
            _openssl(folder, "req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr",
                     "-subj", f"/CN={name}")  # fmt: skip
            (folder / f"{name}.key").chmod(0o600)
            _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                     "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", "names")  # fmt: skip
        pairs = [(str(folder / f"{name}.pem"), str(folder / f"{name}.key")) for name in ("server", "client")]
        return cls(str(folder / "ca.pem"), str(folder / "other.pem"), pairs[0], pairs[1])


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


class SecuredBroker:
    """The address of a broker behind a relay.

    Attributes:
        address: HOST:PORT.
        refused: number of log-ins that were refused.

    Args:
        certificates: of TLS; None for none.
        asks_client: whether a client must have a certificate.
        user: name and password of the only user, by PLAIN; None for everybody.
    """

    def __init__(
        self,
        broker: Broker,
        certificates: Certificates | None,
        *,
        asks_client: bool = False,
        user: tuple[str, str] | None = None,
    ) -> None:
        self._port = int(broker.address.rpartition(":")[2])
        self._user = user
        self._tls: ssl.SSLContext | None = None
        if certificates is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*certificates.server)
            if asks_client:
                self._tls.verify_mode = ssl.CERT_REQUIRED
                self._tls.load_verify_locations(certificates.ca)
        self._listener = socket.create_server((HOST, 0))
        self._own_port = int(self._listener.getsockname()[1])
        self.address = f"{HOST}:{self._own_port}"
        self.refused = 0
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def url(self, topic: str) -> str:
        """The path of a topic in a job file."""
        return f"kafka://{self.address}/{topic}"

    @contextmanager
    def running(self) -> Iterator[SecuredBroker]:
        """Listen, on a thread, until the end of the block; every connection has one of its own."""
        self._start(self._accept)
        try:
            yield self
        finally:
            # It wakes the thread that accepts, which then ends.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._threads[0].join()
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in self._threads:
                thread.join()
            self._listener.close()

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=_until_the_end, args=(target, *arguments), name="relay")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            self._open.append(client)
            self._start(self._relay, client)

    def _relay(self, client: socket.socket) -> None:
        with ExitStack() as sockets:
            sockets.enter_context(client)
            if self._tls is not None:
                client = sockets.enter_context(self._tls.wrap_socket(client, server_side=True))
                self._open.append(client)
            broker = sockets.enter_context(socket.create_connection((HOST, self._port)))
            self._open.append(broker)
            if self._user is not None:
                self._log_in(client, broker)
            own, mock = (HOST.encode() + struct.pack(">i", port) for port in (self._own_port, self._port))
            while True:
                # What TLS has decrypted already makes no socket readable.
                held = isinstance(client, ssl.SSLSocket) and client.pending() > 0
                ready = [client] if held else select.select([client, broker], [], [])[0]
                if client in ready:
                    _send(broker, _frame(client))
                if broker in ready:
                    _send(client, _frame(broker).replace(mock, own))

    def _log_in(self, client: socket.socket, broker: socket.socket) -> None:
        """Answer requests until the client has logged in; raises EOFError if it is refused."""
        assert self._user is not None
        token = b"\0%b\0%b" % (self._user[0].encode(), self._user[1].encode())
        while True:
            request = _frame(client)
            kind, version, number = struct.unpack_from(">hhi", request)
            head = struct.pack(">i", number)
            if kind == API_VERSIONS and version > 0:
                _send(client, head + struct.pack(">hihhh", UNSUPPORTED_VERSION, 1, API_VERSIONS, 0, 0))
            elif kind == API_VERSIONS:
                _send(broker, request)
                _send(client, _with_log_in(_frame(broker)))
            elif kind == SASL_HANDSHAKE:
                _send(client, head + struct.pack(">hih", 0, 1, 5) + b"PLAIN")
            else:
                assert kind == SASL_AUTHENTICATE
                if request.endswith(struct.pack(">i", len(token)) + token):
                    _send(client, head + struct.pack(">hhi", 0, -1, 0))
                    return
                self.refused += 1
                _send(client, head + struct.pack(">hhi", SASL_AUTHENTICATION_FAILED, -1, 0))
                raise EOFError


def _with_log_in(versions: bytes) -> bytes:
    """Add the requests of the log-in to an answer that lists all requests."""
    (count,) = struct.unpack_from(">i", versions, 6)
    end = 10 + 6 * count
    more = struct.pack(">hhhhhh", SASL_HANDSHAKE, 0, 1, SASL_AUTHENTICATE, 0, 0)
    return versions[:6] + struct.pack(">i", count + 2) + versions[10:end] + more + versions[end:]


def _until_the_end(target: Callable[..., None], *arguments: Any) -> None:
    # A client goes, is refused, or the relay ends.
    with suppress(OSError, EOFError):
        target(*arguments)


def _frame(connection: socket.socket) -> bytes:
    return _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def _send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(struct.pack(">i", len(frame)) + frame)
