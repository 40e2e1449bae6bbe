"""`join="env://"`: loops that torchrun started, and the hub that rank 0 hosts for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ..nodes.runtime.settings import NodeSettings
from ..pipeline.wire.endpoints import AUTO
from .errors import AttachError
from .hub.serve import HubThread
from .job import loop_job

ENV: Final = "env://"
_VARIABLES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Joining:
    """Where to join, and what to do after the loop has left."""

    endpoint: str
    at_end: Callable[[], None]


def join_by_environment(settings: Mapping[str, Any], timeout_seconds: float) -> Joining:
    """Find the hub of this launch; on rank 0 start it, as a thread.

    The address is told by the store of torch.distributed at MASTER_ADDR. The hub ends when the last loop of
    all ranks has left: rank 0 waits for that, after its own loop has.

    Raises AttachError without the variables, and for a launch on several machines without a key.
    """
    if missing := [name for name in _VARIABLES if not os.environ.get(name)]:
        raise AttachError(
            f"{', '.join(missing)} not set, from which {ENV} finds the other loops",
            where="join",
            remedy="start the processes with torchrun, or give the address of a hub: shadowsync hub",
        )
    store = _store(timeout_seconds)
    key = f"shadowsync/hub/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_next_attach()}"
    if int(os.environ["RANK"]) != 0:
        return Joining(store.get(key).decode(), lambda: None)
    one_machine = os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ["WORLD_SIZE"]
    node = NodeSettings(
        loop_job({**settings, "run.start_timeout_seconds": timeout_seconds}),
        bind="127.0.0.1" if one_machine else "0.0.0.0",
        advertise="" if one_machine else AUTO,
    )
    # It ends by itself if the loop of rank 0 never begins, too: with the process.
    # A fast loop may have left before a slow one comes.
    hub = HubThread(node, until_empty=True, expected=int(os.environ["WORLD_SIZE"]))
    endpoint = hub.start()
    store.set(key, endpoint)
    return Joining(endpoint, _HostedHub(hub, store).end)


@dataclass(frozen=True)
class _HostedHub:
    """The hub of rank 0, and the store that has its address.

    Another rank may ask for the address late. The store may be served by this process; then it ends with the
    last reference to it.
    """

    hub: HubThread
    store: Any

    def end(self) -> None:
        """Wait until the last loop has left."""
        self.hub.join()


_attaches = 0


def _next_attach() -> int:
    """Return the number of this attach, the same on all ranks."""
    global _attaches
    _attaches += 1
    return _attaches


def _store(timeout_seconds: float) -> Any:
    """Return the store at MASTER_ADDR; torchrun's agent has it, else rank 0 does."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=os.environ["RANK"] == "0" and not agent,
        timeout=timedelta(seconds=timeout_seconds),
        wait_for_workers=False,
        multi_tenant=True,
    )
