"""A trainer's replica and its workers on a GPU.

Every worker has a stream to compute and one to copy; the shadow thread's copies and changes have a stream of
their own. The host runs ahead of the device. Everything used of CUDA is behind `Streams`, so that tests can
replace it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import torch

from ...pipeline.embedding.lookup.gather_indices import Span
from ...pipeline.embedding.lookup.vectors import copy_spans
from ...pipeline.types import Float32Array, Int64Array
from ...sync_algos.base import Slice
from .buffer import FlatReplica
from .device import Computed, DeviceStream, HostBatch, PendingResult, Staged, StagedInputs, StepResult
from .packed_batch import BlockLayout, results_of
from .scattered import ScatteredBuffer

OLDEST_TO_CAPTURE: Final = (2, 13)
"""Version of torch from which on steps are captured. With earlier ones a capture that fails leaks memory from
then on, and other threads that draw random numbers during a capture fail."""

# Torch captures in one thread at a time.
_CAPTURING = threading.Lock()


class StreamEvent(Protocol):
    """A point in a stream; recording it again moves it, for later waits."""

    def record(self, stream: Any) -> None:
        """Place the event behind all that is enqueued on the stream so far."""
        ...

    def synchronize(self) -> None:
        """Block the calling thread until the device has passed the event."""
        ...


class Streams(Protocol):
    """The streams, events and pinned memory of one device.

    Any thread may call. One thread at a time enqueues on a stream, except for single operations, which may
    interleave.
    """

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        ...

    def stream(self) -> Any:
        """Return a new stream, ordered after everything enqueued on the device so far."""
        ...

    def default(self) -> Any:
        """Return the stream on which torch works by default."""
        ...

    def event(self) -> StreamEvent:
        """Return a new event.

        A wait for one that was never recorded does nothing.
        """
        ...

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """Return a context in which torch enqueues this thread's work on the stream."""
        ...

    def behind(self, stream: Any, event: StreamEvent) -> None:
        """Make later work on the stream wait on the device for the event."""
        ...

    def pinned(self, elements: int) -> torch.Tensor:
        """Return pinned host memory, float32 [elements], for asynchronous copies."""
        ...

    def lock(self, memory: torch.Tensor) -> bool:
        """Page-lock memory of the host; return whether it is, as after `pinned`."""
        ...

    def unlock(self, memory: torch.Tensor) -> None:
        """Undo `lock`, before the memory is unmapped."""
        ...

    def is_locked(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is within locked memory."""
        ...

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy between pinned or locked memory and the device; returns at once."""
        ...

    def used_on(self, stream: Any, tensor: torch.Tensor) -> None:
        """Keep the memory of another stream's tensor until this stream has used it.

        The memory is not reused before all that this stream has enqueued when the tensor is dropped.
        """
        ...

    def graph(self, stream: Any, function: Callable[[], None]) -> Callable[[], None]:
        """Capture what the function enqueues on the stream; return what enqueues all of it again.

        The function's own tensors keep their memory as long as the result is referred to. Nothing runs
        meanwhile. Raises RuntimeError for work that cannot be captured.
        """
        ...


class CudaStreams:
    """The streams of `torch.cuda`, for the device with this index.

    Pinned memory comes from torch's caching allocator, which reuses a dropped tensor's memory only when the
    copies from and to it are done. A wait for an event blocks instead of spinning: the node's other threads
    need the cores.
    """

    def __init__(self, index: int) -> None:
        self.torch_device = torch.device("cuda", index)
        self._locked: dict[int, int] = {}

    def stream(self) -> torch.cuda.Stream:
        stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream(self.torch_device))
        return stream

    def default(self) -> torch.cuda.Stream:
        return torch.cuda.default_stream(self.torch_device)

    def event(self) -> StreamEvent:
        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def on(self, stream: Any) -> AbstractContextManager[object]:
        return torch.cuda.stream(stream)

    def behind(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def pinned(self, elements: int) -> torch.Tensor:
        # Otherwise torch would open the first GPU too, for a job on the second.
        with torch.cuda.device(self.torch_device):
            return torch.empty(elements, dtype=torch.float32, pin_memory=True)

    def lock(self, memory: torch.Tensor) -> bool:
        start, size = memory.data_ptr(), memory.nbytes
        with torch.cuda.device(self.torch_device):
            if int(_cudart().cudaHostRegister(start, size, 0)):
                # CUDA keeps the error for the thread's next kernel, which torch would take for a failed one.
                with suppress(RuntimeError):
                    torch.ones(1, device=self.torch_device)
                return False
        self._locked[start] = start + size
        return True

    def unlock(self, memory: torch.Tensor) -> None:
        if self._locked.pop(memory.data_ptr(), None) is not None:
            with torch.cuda.device(self.torch_device):
                _cudart().cudaHostUnregister(memory.data_ptr())

    def is_locked(self, tensor: torch.Tensor) -> bool:
        start = tensor.data_ptr()
        return any(first <= start < end for first, end in tuple(self._locked.items()))

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def used_on(self, stream: Any, tensor: torch.Tensor) -> None:
        tensor.record_stream(stream)

    def graph(self, stream: Any, function: Callable[[], None]) -> Callable[[], None]:
        if _torch_version() < OLDEST_TO_CAPTURE:
            raise RuntimeError(
                f"torch {torch.__version__} is older than {'.'.join(map(str, OLDEST_TO_CAPTURE))}, from which"
                " on training goes on undisturbed after a capture that failed"
            )
        failed: list[Exception] = []
        # Other threads of the trainer allocate memory and wait for events meanwhile; they may.
        with _CAPTURING, torch.cuda.device(self.torch_device):
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    try:
                        function()
                    except Exception as error:
                        failed.append(error)
                        raise
            except RuntimeError as error:
                # The end of a failed capture may fail too, and says less.
                raise (failed or [error])[0] from None
            finally:
                # The error refers to this call, with all that the function holds.
                failed.clear()
        return graph.replay


class DeviceReplica(FlatReplica):
    """A float32 buffer [numel] on a device; see `FlatReplica`.

    Implements `Replica` of `sync_algos`, with CPU tensors.

    The shadow thread's work runs after the steps that the workers have enqueued by then, and before the steps
    that they enqueue afterwards; these waits are on the device. On the host, only the thread that requests a
    snapshot waits for it. Steps that a worker enqueues while a change is being enqueued race with it element
    by element, as on the CPU.
    """

    # Each piece is a few operations of the device.
    squares_at_once = sys.maxsize

    def __init__(
        self,
        buffer: torch.Tensor | ScatteredBuffer,
        examples: Int64Array,
        streams: Streams,
        weights: int | None = None,
    ) -> None:
        super().__init__(buffer, examples, weights)
        self._streams = streams
        self._stream = streams.stream()
        self._changed = streams.event()
        self._worker_events: list[StreamEvent] = []
        # At a fixed rate the workers call too, besides the shadow thread and the control thread.
        self._lock = threading.Lock()

    def join(self) -> StreamEvent:
        """Return a new worker's event, to be recorded behind each of its steps.

        Any thread may call.
        """
        event = self._streams.event()
        self._worker_events.append(event)
        return event

    def order(self, stream: object) -> None:
        """Order later work on a worker's stream after all changes to the replica."""
        self._streams.behind(stream, self._changed)

    def read(self, start: int = 0, stop: int | None = None, stride: int = 1) -> torch.Tensor:
        """Return a copy on the CPU, behind the workers' steps so far.

        Any thread may call; it blocks.
        """
        return self._fetch(range(self.weights.stop)[start:stop:stride])

    def snapshot(self, part: Slice) -> torch.Tensor:
        """Return a CPU copy of a slice, after the workers' steps so far."""
        return self._fetch(range(part.start, part.stop))

    def add_(self, part: Slice, delta: torch.Tensor, scale: float) -> None:
        """Enqueue `w[part] += scale * delta` in place."""
        with self._lock, self._streams.on(self._stream):
            uploaded = self._upload(delta)
            super().add_(part, uploaded, scale)
            self._changed.record(self._stream)

    def interpolate_(self, part: Slice, target: torch.Tensor, rate: float) -> None:
        """Enqueue `w[part] <- (1 - rate) w[part] + rate * target` in place."""
        with self._lock, self._streams.on(self._stream):
            uploaded = self._upload(target)
            super().interpolate_(part, uploaded, rate)
            self._changed.record(self._stream)

    def _fetch(self, places: range) -> torch.Tensor:
        host, done = self._streams.pinned(len(places)), self._streams.event()
        with self._lock, self._streams.on(self._stream):
            self._locate()
            # A strided copy to the host is made in pieces; gathering on the device first is faster.
            self._streams.copy(self._stream, host, self._values(places).contiguous())
            done.record(self._stream)
        done.synchronize()
        return host

    def _upload(self, values: torch.Tensor) -> torch.Tensor:
        host = self._streams.pinned(values.numel())
        host.copy_(values)
        uploaded = torch.empty(values.numel(), dtype=torch.float32, device=self._streams.torch_device)
        self._streams.copy(self._stream, uploaded, host)
        return uploaded

    def _locate(self) -> None:
        """Find the values, and wait on the device for the steps that write them."""
        if isinstance(self._buffer, ScatteredBuffer):
            self._buffer.refresh()
            for moved in self._buffer.take_moved():
                # The user may drop it while this stream has work on it.
                self._streams.used_on(self._stream, moved)
            # No worker records events: the user's loop is torch's own, and may just have made the values.
            enqueued = self._streams.event()
            enqueued.record(self._streams.default())
            self._streams.behind(self._stream, enqueued)
        for event in tuple(self._worker_events):
            self._streams.behind(self._stream, event)


class CudaDevice:
    """One GPU; see `Device`.

    A worker starts the next step before it has the results of the last one, so the GPU has work while the
    host sends gradients and packs the next batch.
    """

    steps_ahead = 1

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._replica: DeviceReplica | None = None

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        return self._streams.torch_device

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device; blocks."""
        return tensor.to(self._streams.torch_device)

    def replica(
        self, buffer: torch.Tensor | ScatteredBuffer, examples: Int64Array, weights: int | None = None
    ) -> FlatReplica:
        self._replica = DeviceReplica(buffer, examples, self._streams, weights)
        return self._replica

    def page_lock(self, memory: Float32Array) -> object | None:
        """Lock shared memory, from which batches then go to the device without a copy of the host's."""
        tensor = torch.from_numpy(memory)
        return PageLock(tensor, self._streams) if self._streams.lock(tensor) else None

    def open_stream(self) -> DeviceStream:
        assert self._replica is not None
        return CudaStream(self._streams, self._replica)


def _torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class PageLock:
    """Locked memory, which is unlocked when nothing refers to this object, and mapped until then."""

    def __init__(self, memory: torch.Tensor, streams: Streams) -> None:
        weakref.finalize(self, streams.unlock, memory).atexit = False


@dataclass(slots=True)
class PackedBatch:
    """A staged batch in one block of device memory.

    Attributes:
        layout: its parts in the block.
        block: float32, on the device.
        arrived: when the block is filled.
        spans: see `GatherIndices`.
        replies: those of the nodes, which the device may still be reading.
    """

    layout: BlockLayout
    block: torch.Tensor
    arrived: StreamEvent
    spans: Sequence[Sequence[Span]]
    replies: Sequence[torch.Tensor]

    def inputs(self) -> StagedInputs:
        return self.layout.views(self.block)


class CudaStream:
    """One worker's streams: one to compute, and one each for copies to the device and back.

    Implements `DeviceStream`.
    """

    def __init__(self, streams: Streams, replica: DeviceReplica) -> None:
        self._streams = streams
        self._replica = replica
        self._compute = streams.stream()
        self._copies = streams.stream()
        self._results = streams.stream()
        self._stepped = replica.join()

    def stage(self, batch: HostBatch) -> PackedBatch:
        """Copy the batch to the device: what is not page-locked by way of pinned memory."""
        layout, spans = BlockLayout.of(batch), batch.indices.spans
        arrived = self._streams.event()
        with self._streams.on(self._copies):
            block = torch.empty(layout.floats, dtype=torch.float32, device=self._streams.torch_device)
        locked = [self._streams.is_locked(reply) for reply in batch.replies if len(reply)]
        pinned = self._streams.pinned(layout.head_floats if all(locked) else layout.floats)
        layout.write_head(batch, pinned)
        if not all(locked):
            for place, reply, of_node in zip(layout.data(pinned), batch.replies, spans, strict=True):
                copy_spans(of_node, reply, place, back=False)
        self._streams.copy(self._copies, block[: len(pinned)], pinned)
        if all(locked):
            for place, reply, of_node in zip(layout.data(block), batch.replies, spans, strict=True):
                for start, padded, floats in of_node:
                    part = place[padded : padded + floats]
                    self._streams.copy(self._copies, part, reply[start : start + floats])
        arrived.record(self._copies)
        self._streams.used_on(self._compute, block)
        return PackedBatch(layout, block, arrived, spans, batch.replies)

    @contextmanager
    def computing(self, staged: Staged) -> Iterator[None]:
        """Enqueue a step behind its batch's arrival and the shadow thread's changes so far."""
        self._streams.behind(self._compute, cast(PackedBatch, staged).arrived)
        self._replica.order(self._compute)
        with self._streams.on(self._compute):
            yield
            self._stepped.record(self._compute)

    def fetch(self, staged: Staged, computed: Computed) -> PendingResult:
        """Enqueue one copy of all results into pinned memory, behind the step and beside the next."""
        packed = computed.pack() if computed.packed is None else computed.packed
        host, done, made = self._streams.pinned(len(packed)), self._streams.event(), self._streams.event()
        made.record(self._compute)
        self._streams.behind(self._results, made)
        self._streams.used_on(self._results, packed)
        self._streams.copy(self._results, host, packed)
        done.record(self._results)
        return _PinnedResult(host, done, computed, cast(PackedBatch, staged).spans)

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Capture what the function enqueues, without running it; return what enqueues it again.

        Call it within `computing`. Raises what the function raises, and RuntimeError for work that no graph
        can hold or that has no memory.
        """
        return self._streams.graph(self._compute, function)


@dataclass(slots=True)
class _PinnedResult:
    host: torch.Tensor
    done: StreamEvent
    computed: Computed
    spans: Sequence[Sequence[Span]]

    def wait(self) -> StepResult:
        self.done.synchronize()
        return results_of(self.host, self.computed, self.spans)
