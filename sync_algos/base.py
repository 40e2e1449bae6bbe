"""The contract of a synchronization algorithm (contract 8): mathematics over a replica and its peers.

An algorithm is one class with one coroutine, `round`. It opens no socket, reads no clock and starts no
thread; the same class runs over ZeroMQ and over the in-memory peers of `memory`. When a round starts, how
often, and on which thread is decided outside: in shadow mode by the shadow thread, at a fixed rate by each
worker after every k of its iterations.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

import torch


class ModelOrigin(Enum):
    """Which model comes out of a job under an algorithm; `eval`, the report and the checkpoint follow it."""

    CENTER = "center"
    REPLICAS = "replicas"


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements `start` to `stop` of the flat buffer."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class PeerLost(Exception):
    """A peer died or did not answer within the bound. The slice that was exchanged with it is unchanged."""


class Replica(Protocol):
    """A trainer's replica: one flat float32 buffer [numel] that workers write while this is used."""

    @property
    def numel(self) -> int:
        """Elements of the flat buffer."""
        ...

    def snapshot(self, part: Slice) -> torch.Tensor:
        """A copy of a slice as it is now, float32 [len(part)]; workers may write meanwhile."""
        ...

    def add_(self, part: Slice, delta: torch.Tensor, scale: float) -> None:
        """`w[part] += scale * delta` in place; what workers did since a snapshot stays."""
        ...


class Center(Protocol):
    """A parameter center, split in slices over the sync nodes."""

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices, in order; together they are the whole flat buffer."""
        ...

    async def exchange(self, part: Slice, values: torch.Tensor) -> torch.Tensor:
        """Sends this replica's slice to the center and awaits what the algorithm's `center_rule` answers.

        `values` and the answer are float32 [len(part)]. The center applies the whole slice at once, or
        nothing. Raises PeerLost if the sync node is gone or silent; if it had applied the slice by then,
        the center has moved and this replica has not, which the run counts and reports.
        """
        ...


class Peers(Protocol):
    """The others, as an algorithm sees them."""

    @property
    def center(self) -> Center:
        """The center; only for algorithms that declare `needs_center`."""
        ...


@dataclass(frozen=True)
class NoOptions:
    """Options of an algorithm that has none."""


class Algorithm(ABC):
    """Base of all algorithms.

    Class attributes:
        name: what a job file calls it.
        summary: one line for `shadowsync algos`.
        needs_center: whether there must be sync nodes.
        model: which model comes out.
        Options: a frozen dataclass; its fields are the keys of `sync.options`. Its `__post_init__` raises
            ValueError("key: ...") for a value that cannot be used.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    needs_center: ClassVar[bool] = False
    model: ClassVar[ModelOrigin] = ModelOrigin.REPLICAS
    Options: ClassVar[type[Any]] = NoOptions

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    async def round(self, replica: Replica, peers: Peers) -> bool:
        """One synchronization of this trainer; called by one thread at a time.

        Returns whether the round is complete, that is, whether all of its slices were applied. Raises
        nothing for a lost peer: what could be applied whole is applied, the rest is left unchanged.
        """

    def center_rule(self, center: torch.Tensor, values: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """The center's half: moves `center` (float32 [n], in place) for a replica's `values` (float32 [n])
        and gives the answer, a new float32 [n]. Runs on the sync node's service thread, once an exchange.

        Only algorithms with `needs_center` have one.
        """
        raise TypeError(f"{type(self).__name__} has no center")

    def describe(self) -> Mapping[str, Any]:
        """The options in effect, for reports."""
        return dataclasses.asdict(self.options)
