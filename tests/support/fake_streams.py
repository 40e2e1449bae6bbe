"""Streams of a device that is not there: copies happen as late as they may, and the order is on record."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from shadowsync.tests.support.fake_graph import captured


@dataclass(eq=False)
class FakeStream:
    """What was enqueued and is not done yet: (number, work) each."""

    name: str
    queue: list[tuple[int, Callable[[], None]]] = field(default_factory=list)


@dataclass(eq=False)
class FakeEvent:
    """Points at the end of a stream's queue as it was when it was recorded."""

    streams: FakeStreams
    name: str
    stream: FakeStream | None = None
    number: int = 0

    def record(self, stream: FakeStream) -> None:
        self.stream, self.number = stream, self.streams.next_number()
        self.streams.log.append(f"record {self.name} on {stream.name}")

    def synchronize(self) -> None:
        self.streams.log.append(f"host waits for {self.name}")
        self.streams.host_waits += 1
        if self.stream is not None:
            self.streams.work_off(self.stream, self.number)


class FakeStreams:
    """`Streams` on the CPU. A copy is made as late as its order allows: to the device when torch works on its
    stream, or on one that is behind an event behind it; to pinned memory only when a thread waits for such an
    event. Memory that a copy has not filled yet holds NaN, so that whoever reads too early gets NaN.

    Attributes:
        log: what was asked for, in order.
        host_waits: how often a thread blocked.
        locked: page-locked memory, where each begins and ends.
        last_unlocked: what the memory held that was unlocked last.
    """

    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self.log: list[str] = []
        self.locked: dict[int, int] = {}
        self.last_unlocked: torch.Tensor | None = None
        self.host_waits = 0
        self._number = 0
        self._current = threading.local()
        self._pinned: set[int] = set()
        self._streams = 0
        self._default = FakeStream("default stream")
        self._events = 0
        # Several threads work off the same queues, as one device does what all of them enqueue.
        self._device = threading.RLock()

    @property
    def current(self) -> FakeStream | None:
        """The stream that this thread is on; None is the default one."""
        entered = getattr(self._current, "streams", [])
        return entered[-1] if entered else None

    def next_number(self) -> int:
        """Orders all that is enqueued."""
        with self._device:
            self._number += 1
            return self._number

    def stream(self) -> FakeStream:
        self._streams += 1
        return FakeStream(f"stream {self._streams}")

    def default(self) -> FakeStream:
        """See `Streams.default`; what torch does there is done at once."""
        return self._default

    def event(self) -> FakeEvent:
        self._events += 1
        return FakeEvent(self, f"event {self._events}")

    def on(self, stream: FakeStream) -> AbstractContextManager[object]:
        """See `Streams.on`. The CPU works at once, so what is on the stream has to be done by then."""

        @contextmanager
        def enter() -> Iterator[None]:
            self.work_off(stream, self._number)
            current = self._current.streams = [*getattr(self._current, "streams", []), stream]
            yield
            self._current.streams = current[:-1]

        return enter()

    def behind(self, stream: Any, event: Any) -> None:
        self.log.append(f"{stream.name} behind {event.name}")
        before, number = event.stream, event.number
        if before is not None:
            stream.queue.append((self.next_number(), lambda: self.work_off(before, number)))

    def pinned(self, elements: int) -> torch.Tensor:
        """See `Streams.pinned`."""
        memory = torch.full((elements,), float("nan"))
        place = memory.data_ptr()
        self._pinned.add(place)
        # The next tensor at this place may be one of the device.
        weakref.finalize(memory, self._pinned.discard, place)
        return memory

    def lock(self, memory: torch.Tensor) -> bool:
        self.locked[memory.data_ptr()] = memory.data_ptr() + memory.nbytes
        return True

    def unlock(self, memory: torch.Tensor) -> None:
        """See `Streams.unlock`; what the memory holds can still be read."""
        self.last_unlocked = memory.clone()
        del self.locked[memory.data_ptr()]

    def is_locked(self, tensor: torch.Tensor) -> bool:
        return any(start <= tensor.data_ptr() < end for start, end in tuple(self.locked.items()))

    def copy(self, stream: FakeStream, target: torch.Tensor, source: torch.Tensor) -> None:
        self.log.append(f"copy on {stream.name}")
        # By `data`, as the device writes: autograd has noted the copy when it was asked for.
        place = target.data
        place.fill_(float("nan"))

        def work() -> None:
            place.copy_(source)

        if stream in getattr(self._current, "streams", []) and target.data_ptr() not in self._pinned:
            # Torch's next work on this stream is behind it, and the CPU does that at once.
            work()
            return
        stream.queue.append((self.next_number(), work))

    def used_on(self, stream: FakeStream, tensor: torch.Tensor) -> None:
        """See `Streams.used_on`; nothing is given out again here."""

    def graph(self, stream: FakeStream, function: Callable[[], None]) -> Callable[[], None]:
        self.log.append(f"capture on {stream.name}")
        replay = captured(function)

        def again() -> None:
            self.log.append(f"replay on {stream.name}")
            replay()

        return again

    def work_off(self, stream: FakeStream, number: int) -> None:
        """Does what is on the stream up to this number."""
        with self._device:
            while stream.queue and stream.queue[0][0] <= number:
                stream.queue.pop(0)[1]()
