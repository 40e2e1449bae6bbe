"""A trainer's replica and its workers on a GPU.

Every worker has a stream to compute and one to copy; the shadow thread's copies and changes have a stream of
their own. The host runs ahead of the device.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch

from ...pipeline.embedding.lookup.gather_indices import Span
from ...pipeline.embedding.lookup.vectors import copy_spans
from ...pipeline.types import Float32Array, Int64Array
from ...sync_algos.base import Slice
from .buffer import FlatReplica
from .device import Computed, DeviceStream, HostBatch, PendingResult, Staged, StepResult
from .packed_batch import BlockLayout, PackedBatch, head_of, results_of
from .scattered import ScatteredBuffer
from .streams import StreamEvent, Streams


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


class PageLock:
    """Locked memory, which is unlocked when nothing refers to this object, and mapped until then."""

    def __init__(self, memory: torch.Tensor, streams: Streams) -> None:
        weakref.finalize(self, streams.unlock, memory).atexit = False


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
        head, spans = head_of(batch), batch.indices.spans
        layout = BlockLayout.of(batch, head)
        arrived = self._streams.event()
        with self._streams.on(self._copies):
            block = torch.empty(layout.floats, dtype=torch.float32, device=self._streams.torch_device)
        locked = [self._streams.is_locked(reply) for reply in batch.replies if len(reply)]
        pinned = self._streams.pinned(layout.head_floats if all(locked) else layout.floats)
        layout.write_head(head, pinned)
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
