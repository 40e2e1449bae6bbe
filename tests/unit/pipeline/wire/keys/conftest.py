"""The job's key, as the environment names it, and sockets that have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq
from shadowsync.pipeline.wire.keys.curve import ZapAuthenticator
from shadowsync.pipeline.wire.keys.job_key import KEY_VARIABLE, JobKey
from shadowsync.pipeline.wire.sockets import Listener
from shadowsync.tests.support.outside.gate import gated

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[JobKey | None], None]:
    """Sets the key of what is made from now on."""

    def set_key(key: JobKey | None) -> None:
        if key is None:
            monkeypatch.delenv(KEY_VARIABLE, raising=False)
            return
        path = tmp_path / f"{key.server.public.hex()}.key"
        if not path.exists():
            key.write(path)
        monkeypatch.setenv(KEY_VARIABLE, str(path))

    return set_key


@pytest.fixture
def key(use: Callable[[JobKey | None], None]) -> JobKey:
    """The key of what is made."""
    made = JobKey.generate()
    use(made)
    return made


@pytest.fixture
def gate(context: Context, key: JobKey) -> Iterator[ZapAuthenticator]:
    """The authenticator of the context, whose sockets have a key."""
    with gated(context, key) as made:
        yield made


@pytest.fixture
def listen(context: Context, gate: ZapAuthenticator) -> Iterator[Callable[..., Listener]]:
    """Listeners with a key; they are closed before the gate."""
    del gate
    with ExitStack() as stack:
        yield lambda *more: stack.enter_context(closing(Listener(context, "tcp://127.0.0.1:0", *more)))
