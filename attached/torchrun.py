"""`join="env://"`: loops that torchrun started, and the hubs that rank 0 hosts for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ..nodes.runtime.settings import NodeSettings
from ..pipeline.config.job import Job
from ..pipeline.errors import ClusterError
from ..pipeline.text.format import duration
from ..pipeline.wire.endpoints import AUTO
from .errors import AttachError
from .hub.expected_members import ExpectedMembers
from .hub.members import CLIENT, LOOP
from .hub.serve import HubThread
from .job import loop_job

ENV: Final = "env://"
_VARIABLES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Settings of attach that the embedding nodes have, too.
_OF_ROWS: Final = ("codecs.gradients", "codecs.vectors")
# What a hub synchronizes before any loop says it.
_NO_LOOPS_YET: Final = {"sync.algorithm": "none"}


@dataclass(frozen=True)
class HubSlot:
    """Where a part of a loop joins: `attach`, or a module with tables.

    Nothing has to be done as it leaves a hub that somebody else hosts.
    """

    endpoint: str

    def withdraw(self) -> None:
        """Take back that the part joins, since it could not."""

    def leave(self) -> None:
        """Record that the part has left the hub."""

    def await_others(self) -> None:
        """Wait until such parts have left everywhere, if this process hosts the hub."""


@dataclass(frozen=True)
class LaunchSlot(HubSlot):
    """Where a part joins the hub of its launch.

    Attributes:
        part: LOOP or CLIENT.
    """

    part: str
    hub: LaunchHub

    def withdraw(self) -> None:
        self.hub.withdraw(self.part)

    def leave(self) -> None:
        self.hub.leave(self.part)

    def await_others(self) -> None:
        self.hub.await_others(self.part)


class LaunchHubs:
    """The hubs of a launch, as one process knows them; any thread may call.

    A hub takes one attached loop and one module with tables of each process. A part joins the oldest hub that
    has another part of its process now and never had one of its kind, else a new one. So processes with the
    same program give each hub the same number, whatever their speed.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._hubs: list[LaunchHub] = []
        self._count = 0

    def join(self, part: str, settings: Mapping[str, Any], timeout_seconds: float) -> LaunchSlot:
        """Find the hub of a part; rank 0 starts it, as a thread.

        `part` is LOOP or CLIENT. `settings` are those of the loops, by key. Raises AttachError without
        torchrun's variables, for a launch on several machines without a key, and for settings that come too
        late; ClusterError if rank 0 does not tell its address.
        """
        if missing := [name for name in _VARIABLES if not os.environ.get(name)]:
            raise AttachError(
                f"{', '.join(missing)} not set, from which {ENV} finds the other loops",
                where="join",
                remedy="start the processes with torchrun, or give the address of a hub: shadowsync hub",
            )
        with self._changing:
            self._hubs = [hub for hub in self._hubs if not hub.is_over]
            hub = next((hub for hub in self._hubs if hub.accepts(part)), None)
            if hub is None:
                self._count += 1
                hub = LaunchHub(self._count)
                self._hubs.append(hub)
            hub.add(part)
        try:
            return LaunchSlot(hub.endpoint(part, settings, timeout_seconds), part, hub)
        except BaseException:
            hub.withdraw(part)
            raise


class LaunchHub:
    """One hub of a launch, as one process knows it; rank 0 hosts it.

    Any thread may call. Its address is told by the store of torch.distributed at MASTER_ADDR: to modules once
    it is there, to loops once the loop of rank 0 has said what they synchronize.

    Args:
        number: which hub of the launch it is, the same in all processes.
    """

    def __init__(self, number: int) -> None:
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        key = f"shadowsync/hub/{restart}/{number}"
        self._keys = {CLIENT: key, LOOP: f"{key}/loops"}
        self._starting = threading.Lock()
        self._present: set[str] = set()
        self._left: set[str] = set()
        # Of rank 0. The store may be served by this process, and ends with the last reference to it.
        self._expected = ExpectedMembers()
        self._hosted: HubThread | None = None
        self._takes_loops = False
        self._store: Any = None

    def accepts(self, part: str) -> bool:
        """Return whether a part of this process may join it now."""
        is_open = bool(self._present) or not self._left
        return is_open and part not in self._present and part not in self._left

    @property
    def is_over(self) -> bool:
        """Whether all parts of this process have left, and a hosted hub has ended."""
        is_left = bool(self._left) and not self._present
        return is_left and (self._hosted is None or self._hosted.join(0))

    def add(self, part: str) -> None:
        """Record that a part of this process joins."""
        self._present.add(part)

    def withdraw(self, part: str) -> None:
        """Record that a part could not join.

        It may try again. Nobody awaits the others for it.
        """
        self._present.discard(part)
        self._expected.expect(part, 0)

    def leave(self, part: str) -> None:
        """Record that a part has left."""
        self._present.discard(part)
        self._left.add(part)

    def await_others(self, part: str) -> None:
        """Return when the parts of this kind have left everywhere.

        After the last part of this process, return when the hub has ended. Waits only on rank 0: the others
        need its process.
        """
        if self._hosted is None:
            return
        self._expected.await_gone(part)
        if not self._present:
            self._hosted.join()

    def endpoint(self, part: str, settings: Mapping[str, Any], timeout_seconds: float) -> str:
        """Return the address; see `LaunchHubs.join`."""
        if int(os.environ["RANK"]) != 0:
            return _published(self._keys[part], timeout_seconds)
        with self._starting:
            if part == CLIENT:
                settings = _NO_LOOPS_YET
            hub = self._hosted or self._start(part, settings, timeout_seconds)
            if part == LOOP and not self._takes_loops:
                _require_rows(settings)
                hub.take_loops(_job(settings, timeout_seconds))
                self._takes_loops = True
            # A fast loop may have left before a slow one comes.
            self._expected.expect(part, int(os.environ["WORLD_SIZE"]))
            self._store.set(self._keys[CLIENT], hub.endpoint)
            self._store.set(self._keys[part], hub.endpoint)
        return hub.endpoint

    def _start(self, part: str, settings: Mapping[str, Any], timeout_seconds: float) -> HubThread:
        """Start the hub; it ends with the process, or when all have left."""
        one_machine = os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ["WORLD_SIZE"]
        node = NodeSettings(
            _job(settings, timeout_seconds),
            bind="127.0.0.1" if one_machine else "0.0.0.0",
            advertise="" if one_machine else AUTO,
        )
        self._store = _store(timeout_seconds)
        hub = HubThread(node, expected=self._expected, loops_later=part == CLIENT)
        hub.start()
        self._hosted, self._takes_loops = hub, part == LOOP
        return hub


def _job(settings: Mapping[str, Any], timeout_seconds: float) -> Job:
    return loop_job({**settings, "run.start_timeout_seconds": timeout_seconds})


def _require_rows(settings: Mapping[str, Any]) -> None:
    """Raise AttachError for settings of rows that come after the tables."""
    defaults = loop_job(_NO_LOOPS_YET).codecs
    for key in _OF_ROWS:
        of_tables = getattr(defaults, key.partition(".")[2])
        if settings.get(key, of_tables) != of_tables:
            raise AttachError(
                f"the loop wants {settings[key]!r}, and the tables that were made before have {of_tables!r}",
                where=key,
                remedy="call attach before shadowsync.Embeddings, or leave it out",
            )


def _published(key: str, timeout_seconds: float) -> str:
    """Return what rank 0 has published by this key."""
    try:
        published: bytes = _store(timeout_seconds).get(key)
    except RuntimeError as error:
        what = "attach" if key.endswith("/loops") else "attach or shadowsync.Embeddings"
        raise ClusterError(
            f"rank 0 did not call {what} within {duration(timeout_seconds)}, or its launch cannot be reached",
            where=ENV,
            remedy="run the same program on all ranks, or give timeout_seconds=",
        ) from error
    return published.decode()


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


HUBS: Final = LaunchHubs()
"""The hubs of this process's launch."""
