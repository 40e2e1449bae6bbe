"""Running rounds in memory, as the algorithms' contract allows; and packages of others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from shadowsync.sync_algos.base import Group, Slice
from shadowsync.sync_algos.catalog.registry import make_algorithm
from shadowsync.sync_algos.contract.grouping import Grouping, everyone
from shadowsync.sync_algos.memory.center import MemoryCenter, MemoryReplica

SIZE = 37


def _nothing(part: Slice) -> None:
    del part


@dataclass
class Cluster:
    """One center and two replicas under one algorithm; `meanwhile` runs between a request and its answer."""

    name: str
    options: dict[str, Any]
    parts: int
    meanwhile: Callable[[Slice], None] = field(default=_nothing)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(11)
        self.algorithm = make_algorithm(self.name, self.options)
        self.replicas = [MemoryReplica(torch.randn(SIZE, generator=generator)) for _ in range(2)]
        self.center = SlowCenter(self)
        self.peers = OnlyCenter(self.center)

    def round(self, replica: int = 0) -> bool:
        return asyncio.run(self.algorithm.round(self.replicas[replica], self.peers))


class SlowCenter(MemoryCenter):
    """Something happens to the replica before each answer arrives."""

    def __init__(self, cluster: Cluster) -> None:
        initial = torch.randn(SIZE, generator=torch.Generator().manual_seed(12))
        super().__init__(cluster.algorithm, initial, cluster.parts)
        self._cluster = cluster

    async def exchange(
        self, part: Slice, values: torch.Tensor, examples: int | None = None, *, member: int = 0
    ) -> torch.Tensor:
        reply = await super().exchange(part, values, examples, member=member)
        self._cluster.meanwhile(part)
        return reply


@dataclass
class OnlyCenter:
    """Peers of a trainer that may only talk to the center."""

    center: MemoryCenter
    index: int = 0

    async def meet(self, grouping: Grouping = everyone) -> Group:
        raise AssertionError(f"a center's algorithm met others by {grouping}")


@pytest.fixture
def make_cluster() -> Callable[..., Cluster]:
    """A cluster by the algorithm's name, its options, and the number of slices."""

    def make(name: str, parts: int = 1, **options: Any) -> Cluster:
        return Cluster(name, options, parts)

    return make


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Writes a module into a folder that is on the path; forgets it afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> Path:
        file = tmp_path / f"{name}.py"
        file.write_text(text, encoding="utf-8")
        return file

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path: Path, write: Callable[[str, str], Path]) -> Callable[..., None]:
    """What pip leaves of a package with entry points: its metadata."""
    del write

    def install(package: str, **points: str) -> None:
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
        lines = "".join(f"{name} = {value}\n" for name, value in points.items())
        (folder / "entry_points.txt").write_text(f"[shadowsync.sync_algos]\n{lines}", "utf-8")

    return install
