"""A worker as its trainer uses it, whether a thread or a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...pipeline.metrics.quality import QualitySums
from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.control.profile import ProcessTrace


@dataclass(frozen=True, slots=True)
class DrainResult:
    """A worker's report once it has stopped training.

    Attributes:
        in_flight: number of examples that arrived but were not trained.
        progressive: sums over the batches that it scored before their step.
    """

    in_flight: int
    progressive: QualitySums


class WorkerHandle(Protocol):
    """A worker of this trainer.

    Any thread may call any method; only `join` waits.
    """

    index: int

    def start(self, progressive: frozenset[int] = frozenset()) -> None:
        """Begin to train.

        Batches of the `progressive` spans are scored before their step, in the first epoch.
        """
        ...

    def confirm(self, reader: str, sequence: int) -> None:
        """Let the reader forget a batch that the coordinator has recorded."""
        ...

    def drain(
        self, sequences: Mapping[str, int], reply: Callable[[DrainResult], object], *, leaving: bool = False
    ) -> None:
        """Stop training after the current batch.

        Args:
            sequences: each reader's last sequence to this worker.
            reply: called on a thread of the worker when all of those have arrived and nothing is in flight.
            leaving: whether the readers take untrained deliveries back; they are then not marked as done.
        """
        ...

    def node_lost(self, name: str) -> None:
        """Expect nothing more from a reader or an embedding node.

        Requests to an embedding node wait for its replacement, or until `drain`.
        """
        ...

    def settle_reader(self, name: str, reply: Callable[[], object]) -> None:
        """Accept nothing more from a lost reader, and train what it has delivered.

        Calls `reply`, on a thread of the worker, when all of that is confirmed. For an unknown reader it
        calls `reply` at once, and never connects to it.
        """
        ...

    def connect_reader(self, member: MemberInfo) -> None:
        """Connect to a reader that has joined, unless it is known."""
        ...

    def replace_shard(self, member: MemberInfo, reply: Callable[[], object]) -> None:
        """Switch to a replacement embedding node.

        Calls `reply`, on a thread of the worker, when everything pushed before is confirmed.
        """
        ...

    def evaluate(self, pass_number: int, flat: torch.Tensor) -> None:
        """Score deliveries of this pass with these weights from now on.

        `flat` is float32 [numel] and must not change meanwhile. Deliveries of this pass that are already here
        have waited; those of earlier passes are dropped.
        """
        ...

    def collect(self, pass_number: int, reply: Callable[[QualitySums], object]) -> None:
        """Pass the sums of a pass to `reply`, on a thread of the worker."""
        ...

    def metrics(self) -> dict[str, Any]:
        """Return the counts so far, which add up over workers."""
        ...

    def trace(self, seconds: float, reply: Callable[[ProcessTrace], object]) -> bool:
        """Trace its process for `seconds`, then pass the trace to `reply`.

        `reply` is called on a thread of the worker. Returns False if the worker is a thread of this process,
        which has the same tracer.
        """
        ...

    def stop(self) -> None:
        """Tell it to end."""
        ...

    def join(self, timeout_seconds: float) -> bool:
        """Wait for its end; return whether it has ended."""
        ...
