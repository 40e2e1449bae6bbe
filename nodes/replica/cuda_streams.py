"""What is used of CUDA: streams, events and pinned memory, by torch; a test has its own instead."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in a stream; `record` again moves it, for those that wait later."""

    def record(self, stream: Any) -> None:
        """Behind all that is enqueued on the stream so far."""
        ...

    def synchronize(self) -> None:
        """Blocks the calling thread until the device has passed it."""
        ...


class Streams(Protocol):
    """One device's streams. Any thread may call; a stream is enqueued on by one thread at a time, but for
    single operations, which may interleave."""

    @property
    def torch_device(self) -> torch.device:
        """As torch names it."""
        ...

    def stream(self) -> Any:
        """A new stream, behind all that was enqueued on the device so far."""
        ...

    def event(self) -> Event:
        """A new event; to wait for one that was never recorded is nothing."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """What torch does inside, on this thread, it enqueues on the stream."""
        ...

    def behind(self, stream: Any, event: Event) -> None:
        """What is enqueued on the stream from now on waits, on the device, for the event's last record."""
        ...

    def pinned(self, elements: int) -> torch.Tensor:
        """Host memory that the device copies from and to by itself, float32 [elements]."""
        ...

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueues a copy between pinned memory and the device; returns at once."""
        ...

    def used_on(self, stream: Any, tensor: torch.Tensor) -> None:
        """The memory of a tensor that another stream made is not given out again before what is enqueued on
        this stream by the time the tensor is dropped."""
        ...


class CudaStreams:
    """Those of `torch.cuda`, for the device with this index.

    Pinned memory comes from torch's caching allocator, which gives a dropped tensor's memory out again only
    when the copies from and to it are done. Events block their waiter instead of spinning: the cores belong
    to the node's other threads.
    """

    def __init__(self, index: int) -> None:
        self.torch_device = torch.device("cuda", index)

    def stream(self) -> torch.cuda.Stream:
        """See `Streams.stream`."""
        stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream(self.torch_device))
        return stream

    def event(self) -> Event:
        """See `Streams.event`."""
        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """See `Streams.on`."""
        return torch.cuda.stream(stream)

    def behind(self, stream: Any, event: Any) -> None:
        """See `Streams.behind`."""
        stream.wait_event(event)

    def pinned(self, elements: int) -> torch.Tensor:
        """See `Streams.pinned`."""
        # Else it would open the first GPU too, for a job on the second.
        with torch.cuda.device(self.torch_device):
            return torch.empty(elements, dtype=torch.float32, pin_memory=True)

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Streams.copy`."""
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def used_on(self, stream: Any, tensor: torch.Tensor) -> None:
        """See `Streams.used_on`."""
        tensor.record_stream(stream)
