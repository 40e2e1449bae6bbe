"""The fork servers of a test session, from which all of its tests' processes are forked."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from shadowsync.nodes.supervisor.fork_server import ForkServer, fork
from shadowsync.nodes.supervisor.starter import COMMON, LIGHT, TORCH

from . import warm_job
from .warm_job import WarmOrder

# What processes without torch, and those with it, import beyond what a job's servers import: what Arrow looks
# for as soon as it reads, and what the optimizers of torch do as they are made.
MORE = ("pandas", "numpy.random"), ("torch._dynamo", "numpy.random", "shadowsync.attached.attach")


def _installed(modules: tuple[str, ...]) -> list[str]:
    return [module for module in modules if importlib.util.find_spec(module.partition(".")[0]) is not None]


class WarmServer:
    """The product's fork servers, once for a whole test session, and with more imports.

    What they have forked is killed when pytest is gone, however that ended.

    Attributes:
        pids: of its processes, which stay.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._light, self._torch = self._servers = [
            ForkServer((*COMMON, *own, *_installed(more), warm_job.__name__), environment)
            for own, more in zip((LIGHT, TORCH), MORE, strict=True)
        ]
        self.pids = {server.process.pid for server in self._servers}

    @property
    def addresses(self) -> list[str]:
        """The first arguments of a `warm_job`."""
        return [server.address for server in self._servers]

    def start(self, order: WarmOrder, log: Path, *, torch: bool) -> int:
        """Forks a process that writes to a file; gives what `fork` does."""
        server = self._torch if torch else self._light
        with open(os.devnull, "rb") as nothing, log.open("ab") as file:
            return fork(server.address, order, (nothing.fileno(), file.fileno(), file.fileno()))

    def close(self) -> None:
        for server in self._servers:
            server.close()
