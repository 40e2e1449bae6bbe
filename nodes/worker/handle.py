"""A worker as its trainer uses it, whether a thread or a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...pipeline.metrics import QualitySums
from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.control.profile import ProcessTrace


@dataclass(frozen=True, slots=True)
class DrainResult:
    """A worker's report once it has stopped training.

    Attributes:
        in_flight: examples that arrived and were not trained.
        progressive: sums of the batches that it scored before their step.
    """

    in_flight: int
    progressive: QualitySums


class WorkerHandle(Protocol):
    """A worker of this trainer.

    Any thread may call all methods, and none waits but `join`.
    """

    index: int

    def start(self, progressive: frozenset[int] = frozenset()) -> None:
        """Begin to train.

        Score batches of the `progressive` spans, in the first epoch, before their step.
        """
        ...

    def confirm(self, reader: str, sequence: int) -> None:
        """Let the reader forget a batch, which the coordinator has recorded."""
        ...

    def drain(
        self, sequences: Mapping[str, int], reply: Callable[[DrainResult], object], *, leaving: bool = False
    ) -> None:
        """Stop training after the current batch.

        Args:
            sequences: for each reader, the last sequence that it sent to this worker.
            reply: called on a thread of the worker's when all of those have arrived and nothing is on its way
                any more.
            leaving: the readers are not told that the others are done: they take them back.
        """
        ...

    def node_lost(self, name: str) -> None:
        """Expect nothing more of a reader or an embedding node.

        What is meant for the node waits until another one takes its place, or until `drain`.
        """
        ...

    def settle_reader(self, name: str, reply: Callable[[], object]) -> None:
        """Take nothing more of a lost reader, and train what it has delivered.

        Calls `reply`, on a thread of the worker's, when all of that is confirmed; at once for an unknown one,
        which is then not met any more.
        """
        ...

    def connect_reader(self, member: MemberInfo) -> None:
        """Connect to a reader that has joined.

        Nothing happens for one that is known.
        """
        ...

    def replace_shard(self, member: MemberInfo, reply: Callable[[], object]) -> None:
        """Switch to a replacement embedding node.

        Calls `reply`, on a thread of the worker's, when everything is confirmed that was pushed before.
        """
        ...

    def evaluate(self, pass_number: int, flat: torch.Tensor) -> None:
        """Score deliveries of this pass with these weights from now on.

        `flat` is float32 [numel] and must not change meanwhile.
        """
        ...

    def collect(self, pass_number: int, reply: Callable[[QualitySums], object]) -> None:
        """Give the sums of a pass to `reply`.

        On a thread of the worker's.
        """
        ...

    def metrics(self) -> dict[str, Any]:
        """Return counts so far: numbers, which add up over workers."""
        ...

    def trace(self, seconds: float, reply: Callable[[ProcessTrace], object]) -> bool:
        """Trace its process for `seconds`, then pass the trace to `reply`.

        `reply` is called on a thread of the worker's. Returns False if the worker is a thread of this
        process, whose tracer is the same.
        """
        ...

    def stop(self) -> None:
        """Tell it to end."""
        ...

    def join(self, timeout_seconds: float) -> bool:
        """Wait for its end; return whether it has ended."""
        ...
