"""A worker as its trainer sees it, whether it is a thread or a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...pipeline.metrics import QualitySums


@dataclass(frozen=True, slots=True)
class Held:
    """What a worker says when it has stopped training.

    Attributes:
        in_flight: examples that arrived and were not trained.
        progressive: of the batches that it scored before their step.
    """

    in_flight: int
    progressive: QualitySums


class WorkerHandle(Protocol):
    """All methods may be called by any thread, and none waits."""

    index: int

    def start(self, progressive: frozenset[int] = frozenset()) -> None:
        """Training begins; batches of these spans, in the first epoch, are scored before their step."""
        ...

    def confirm(self, reader: str, sequence: int) -> None:
        """The coordinator has noted a batch."""
        ...

    def hold(self, sequences: Mapping[str, int], told: Callable[[Held], object]) -> None:
        """Stops training after the batch at hand.

        Args:
            sequences: for each reader, the last sequence that it sent to this worker.
            told: called on a thread of the worker's when all of those have arrived and nothing is on its way
                any more.
        """
        ...

    def lose_shard(self, name: str) -> None:
        """An embedding node is gone: nothing is trained any more, and what was pushed to it never ends."""
        ...

    def evaluate(self, pass_number: int, flat: torch.Tensor) -> None:
        """From now on scores deliveries of this pass with these weights, float32 [numel], which must not
        change meanwhile."""
        ...

    def collect(self, pass_number: int, told: Callable[[QualitySums], object]) -> None:
        """Hands the sums of a pass to `told`, on a thread of the worker's."""
        ...

    def metrics(self) -> dict[str, Any]:
        """Counts so far: numbers, which add up over workers."""
        ...

    def trace(self, seconds: float, told: Callable[[dict[str, Any]], object]) -> bool:
        """Hands what its process does in the next `seconds` to `told`, on a thread of the worker's; see
        `Tracer.stop`. False if it is a thread of this process, whose tracer is the same."""
        ...

    def stop(self) -> None:
        """Tells it to end."""
        ...

    def join(self, timeout_seconds: float) -> bool:
        """Waits for its end; whether it has ended."""
        ...
