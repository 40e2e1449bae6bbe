"""The replica of a trainer on a GPU: the shadow thread's copies and changes on a stream of their own."""

from __future__ import annotations

import threading

import torch

from ...pipeline.types import Int64Array
from ...sync_algos.base import Slice
from .buffer import FlatReplica
from .cuda_streams import Event, Streams


class DeviceReplica(FlatReplica):
    """A flat float32 buffer [numel] on a device; implements `Replica` of `sync_algos`, with CPU tensors.

    What the shadow thread enqueues comes after the steps that the workers had enqueued by then, and before
    those that they enqueue afterwards; all of this waits on the device. The host waits for a snapshot, on the
    thread that wants it, and for nothing else. Steps that a worker enqueues while a change is being enqueued
    race with it element by element, as they do on the CPU.
    """

    def __init__(self, flat: torch.Tensor, examples: Int64Array, streams: Streams) -> None:
        super().__init__(flat, examples)
        self._streams = streams
        self._stream = streams.stream()
        self._changed = streams.event()
        self._worker_events: list[Event] = []
        # Workers at a fixed rate, the shadow thread and the control thread all come here.
        self._one_at_a_time = threading.Lock()

    def join(self) -> Event:
        """A worker's event, which it records behind each of its steps. Any thread may call."""
        event = self._streams.event()
        self._worker_events.append(event)
        return event

    def order(self, stream: object) -> None:
        """What a worker enqueues on its stream from now on sees what was done to the replica until now."""
        self._streams.behind(stream, self._changed)

    def read(self, start: int = 0, stop: int | None = None, stride: int = 1) -> torch.Tensor:
        """A copy on the CPU, behind the workers' steps so far. Any thread may call, and waits."""
        return self._fetch(self.flat[start:stop:stride])

    def snapshot(self, part: Slice) -> torch.Tensor:
        """A copy of a slice in memory of its own on the CPU, behind the workers' steps so far."""
        return self._fetch(self.flat[part.start : part.stop])

    def add_(self, part: Slice, delta: torch.Tensor, scale: float) -> None:
        """`w[part] += scale * delta` in place; returns when it is enqueued."""
        with self._one_at_a_time, self._streams.on(self._stream):
            given = self._upload(delta)
            self._behind_workers()
            self.flat[part.start : part.stop].add_(given, alpha=scale)
            self._changed.record(self._stream)

    def interpolate_(self, part: Slice, target: torch.Tensor, rate: float) -> None:
        """`w[part] <- (1 - rate) w[part] + rate * target` in place; returns when it is enqueued."""
        with self._one_at_a_time, self._streams.on(self._stream):
            given = self._upload(target)
            self._behind_workers()
            self.flat[part.start : part.stop].lerp_(given, rate)
            self._changed.record(self._stream)

    def _fetch(self, view: torch.Tensor) -> torch.Tensor:
        host, done = self._streams.pinned(view.numel()), self._streams.event()
        with self._one_at_a_time, self._streams.on(self._stream):
            self._behind_workers()
            # A strided copy goes through the host in pieces; the device gathers faster.
            self._streams.copy(self._stream, host, view.contiguous())
            done.record(self._stream)
        done.synchronize()
        return host

    def _upload(self, values: torch.Tensor) -> torch.Tensor:
        host = self._streams.pinned(values.numel())
        host.copy_(values)
        there = torch.empty(values.numel(), dtype=torch.float32, device=self._streams.torch_device)
        self._streams.copy(self._stream, there, host)
        return there

    def _behind_workers(self) -> None:
        for event in tuple(self._worker_events):
            self._streams.behind(self._stream, event)
