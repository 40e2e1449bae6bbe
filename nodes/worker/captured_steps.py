"""A worker's steps as graphs that its device replays: a few calls of the host in place of hundreds.

CUDA graphs: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

import torch

from ...pipeline.config.job import Job
from ...pipeline.models.layers.sequences import model_inputs_of
from ...pipeline.models.training.optimizers import SharedOptimizer
from ..replica.device import Computed
from ..replica.packed_batch import BatchInBlock, PackedBatch
from ..replica.replica import TrainerContext
from .computation import BatchWork, Computation

EAGER_STEPS: Final = 3
"""Steps of a layout before its capture, in which libraries reserve what they need."""

MOST_GRAPHS: Final = 16
"""Graphs of a worker; batches of further layouts are computed without one."""

TRIES: Final = 3
"""Comparisons that differ before steps stay eager, if a trainer has several workers.

The others may draw random numbers between those of a step and of its captured one.
"""

EAGER: Final = "steps are computed without a captured graph, which is slower: "

_TOLERANCE: Final = 1e-2
_SPARE_SHARE: Final = 8
_BUCKET_ROWS: Final = 64


@runtime_checkable
class StepCapture(Protocol):
    """A stream that can capture work; `nodes.replica.cuda.CudaStream` is one."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Capture what the function enqueues, without running it; return what enqueues it again."""
        ...


class CaptureError(Exception):
    """A captured step is not the step itself."""


def no_event(what: str) -> None:
    """Report no event: the default for those who have no coordinator."""


class Padding:
    """Sizes of batches, padded so that a few layouts do for all.

    Rows are padded to the largest number so far and a bit more; lists of rows to the next power of two, if
    the column may have such lists. Only the worker's thread may call.

    Args:
        longest: the longest list of each column that is a sequence, by the column's number.

    Attributes:
        growths: how often a number of rows was larger than its padded size. No later batch has a layout from
            before: all of these sizes are in every layout.
    """

    def __init__(self, longest: Mapping[int, int]) -> None:
        self._longest = {f"list {column}": most for column, most in longest.items()}
        self._largest: dict[str, int] = {}
        self.growths = 0

    def __call__(self, what: str, size: int) -> int:
        """Return the padded size of what is called so; see `gather_indices.Pad`."""
        if what.startswith("list"):
            return min(1 << (size - 1).bit_length(), self._longest[what])
        if size > self._largest.get(what, -1):
            self.growths += what in self._largest
            spare = size + size // _SPARE_SHARE
            self._largest[what] = -(-spare // _BUCKET_ROWS) * _BUCKET_ROWS
        return self._largest[what]


@dataclass(slots=True)
class _Graph:
    """A captured step.

    Attributes:
        block: its batch.
        computed: its results, each time in the same memory.
        packed: the same in one.
        growths: those of the padding at its capture.
    """

    block: torch.Tensor
    replay: Callable[[], None]
    computed: Computed
    packed: torch.Tensor
    growths: int

    def run(self, block: torch.Tensor) -> Computed:
        self.block.copy_(block)
        self.replay()
        # The next replay overwrites it, maybe before it is fetched.
        return replace(self.computed, packed=self.packed.clone())


class CapturedSteps:
    """Run the steps of one worker, captured where that is possible.

    The first steps of a layout are computed eagerly. Then the step is captured with weights of its own, and
    compared with an eager one over two batches. If it is equal, the step is captured with the weights of the
    replica, and replayed from then on. If it is not, or cannot be captured, all further steps are eager,
    and the reason is told; with several workers only after `TRIES` differences. A batch that is trained again
    makes no update, and is always eager.

    Only the worker's thread may call, within `DeviceStream.computing`.

    Args:
        context: the trainer's.
        computation: the worker's.
        stream: the worker's.
        event: called with the reason why steps are eager.

    Attributes:
        pad: see `GatherIndices.of`; None once steps are eager.
        replays: number of steps that were captured ones.
    """

    def __init__(
        self,
        context: TrainerContext,
        computation: Computation,
        stream: StepCapture,
        event: Callable[[str], None] = no_event,
    ) -> None:
        self._context, self._computation, self._stream = context, computation, stream
        self._event = event
        self._graphs: dict[object, _Graph] = {}
        # Of layouts without a graph: eager steps so far, and the last batch.
        self._seen: dict[object, tuple[int, torch.Tensor]] = {}
        self._differed = 0
        self.pad: Padding | None = Padding(_longest(context.job))
        self.replays = 0

    def run(self, work: BatchWork) -> None:
        """Enqueue the step of a batch, which then has results."""
        graph = None if self.pad is None or work.is_replay else self._graph_of(work)
        if graph is None:
            self._computation.run(work)
            return
        staged = work.staged
        assert isinstance(staged, PackedBatch)
        work.computed = graph.run(staged.block)
        self.replays += 1

    def _graph_of(self, work: BatchWork) -> _Graph | None:
        staged = work.staged
        assert isinstance(staged, PackedBatch)
        key = (staged.layout, self._context.optimizer.is_uneven)
        graph = self._graphs.get(key)
        if graph is not None:
            return graph
        growths = self._growths
        is_full = sum(known.growths == growths for known in self._graphs.values()) >= MOST_GRAPHS
        if is_full or (key not in self._seen and len(self._seen) == MOST_GRAPHS):
            self._seen.clear()
        if is_full:
            return None
        steps, last = self._seen.get(key, (0, staged.block))
        if steps < EAGER_STEPS:
            self._seen[key] = steps + 1, staged.block
            return None
        del self._seen[key]
        try:
            if self._is_equal(work, [last, staged.block]):
                # The device is done with them: the comparison waited for it.
                self._graphs = {k: known for k, known in self._graphs.items() if known.growths == growths}
                graph = self._graphs[key] = self._capture(self._computation, work)
        except CaptureError as error:
            self._differed += 1
            if self._context.job.trainer.workers == 1 or self._differed == TRIES:
                self._refuse(error)
        except Exception as error:  # noqa: BLE001 - a user's model may raise anything here, and trains without
            self._refuse(error)
        return graph

    @property
    def _growths(self) -> int:
        return 0 if self.pad is None else self.pad.growths

    def _capture(self, computation: Computation, work: BatchWork) -> _Graph:
        staged = work.staged
        assert isinstance(staged, PackedBatch)
        block = staged.block.clone()
        block_work = _work_on(block, work)
        packed: list[torch.Tensor] = []

        def step() -> None:
            computation.run(block_work)
            assert block_work.computed is not None
            packed.append(block_work.computed.pack())

        replay = self._stream.capture(step)
        assert block_work.computed is not None
        return _Graph(block, replay, block_work.computed, packed[0], self._growths)

    def _is_equal(self, work: BatchWork, blocks: Sequence[torch.Tensor]) -> bool:
        """Return whether a captured step was compared with an eager one, over these batches.

        It is not if one of them has numbers that are not finite. Raises CaptureError for a difference.
        """
        context = self._context
        eager, captured = context.optimizer.clone(), context.optimizer.clone()
        before = eager.flat.clone()
        warmed = _private(context, captured)
        # What the module or its optimizer keeps from its first step on is not made in the capture.
        with self._same_random_numbers():
            warmed.run(_work_on(blocks[0], work))
        captured.take(eager)
        graph = self._capture(warmed, work)
        computation = _private(context, eager)
        for block in blocks:
            block_work = _work_on(block, work)
            with self._same_random_numbers():
                computation.run(block_work)
            with self._same_random_numbers():
                computed = graph.run(block)
            assert block_work.computed is not None
            assert computed.packed is not None
            expected = block_work.computed.pack()
            if not expected.isfinite().all():
                return False
            _compare("results", expected, computed.packed)
            _compare("weights", eager.flat - before, captured.flat - before)
        return True

    @contextmanager
    def _same_random_numbers(self) -> Iterator[None]:
        device = self._context.device.torch_device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            yield

    def _refuse(self, error: Exception) -> None:
        self.pad = None
        self._graphs.clear()
        self._seen.clear()
        kind = "" if isinstance(error, CaptureError) else f"{type(error).__name__}: "
        self._event(f"{EAGER}{kind}{error}")


def _longest(job: Job) -> dict[int, int]:
    inputs = model_inputs_of(job.embedded_columns, job.data.columns)
    return {number: entry.longest for number, entry in enumerate(inputs) if entry.longest is not None}


def _work_on(block: torch.Tensor, work: BatchWork) -> BatchWork:
    """Return the same work on another batch of the same layout."""
    assert isinstance(work.staged, PackedBatch)
    return BatchWork(BatchInBlock(work.staged.layout, block), work.layout)


def _private(context: TrainerContext, optimizer: SharedOptimizer) -> Computation:
    return Computation(context, optimizer.flat, optimizer, enqueues=True)


def _compare(what: str, expected: torch.Tensor, computed: torch.Tensor) -> None:
    """Raise CaptureError if numbers are further apart than by another order of sums."""
    apart, size = float((expected - computed).norm()), float(expected.norm())
    if not apart <= _TOLERANCE * size:
        raise CaptureError(
            f"a captured step of this model is not the step itself: its {what} differ by {apart:.3g}, of"
            f" {size:.3g}"
        )
