"""Threads that read and write rows of an embedding node.

For nodes with several threads.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import torch

from ...pipeline.embedding.storage.shard_work import ShardWork
from ..runtime.tracing import TRACER

MAX_IN_PROGRESS: Final = 16
_JOIN_SECONDS: Final = 2.0
_WAIT_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class _Task:
    """Work, its callback, and the count of threads that have done their part."""

    work: ShardWork
    done: Callable[[], None]
    ends: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class WriterThreads:
    """Split work over threads.

    Each does its part of all of it in the order of submission.

    All methods belong to one thread, that of the socket.

    Args:
        threads: how many.
        wake: called by one of the threads when work is done, so that `collect` is called.
        failed: called by one of the threads with whatever exception ends it; what was in progress is then
            never done.
    """

    def __init__(
        self, threads: int, wake: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._wake = wake
        self._failed = failed
        self._in_progress = 0
        self._finished: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        # Each holds what is in progress at most, so it is bounded by MAX_IN_PROGRESS.
        self._queues: list[queue.SimpleQueue[_Task | None]] = [queue.SimpleQueue() for _ in range(threads)]
        self._busy_seconds = [0.0] * threads
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"rows-{number}", daemon=True)
            for number in range(threads)
        ]

    @property
    def full(self) -> bool:
        """Whether nothing more should be submitted before something is done."""
        return self._in_progress >= MAX_IN_PROGRESS

    @property
    def busy_seconds(self) -> float:
        """Seconds that the busiest thread has worked; any thread may read it."""
        return max(self._busy_seconds)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit(self, work: ShardWork, done: Callable[[], None]) -> None:
        """Have the work done; `collect` or `wait_idle` then calls `done`."""
        task = _Task(work, done)
        self._in_progress += 1
        for tasks in self._queues:
            tasks.put(task)

    def collect(self) -> None:
        """Call `done` for all that is done by now."""
        while not self._finished.empty():
            self._take(self._finished.get())

    def wait_idle(self, stopping: Callable[[], bool]) -> None:
        """Wait until all is done, or `stopping` says that it will not be.

        Afterwards the rows are the caller's.
        """
        while self._in_progress and not stopping():
            try:
                self._take(self._finished.get(timeout=_WAIT_SECONDS))
            except queue.Empty:
                continue

    def close(self) -> None:
        """End the threads when they have done what was submitted."""
        for tasks in self._queues:
            tasks.put(None)
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def _take(self, task: _Task) -> None:
        self._in_progress -= 1
        task.done()

    def _run(self, number: int) -> None:
        torch.set_num_threads(1)
        threads = len(self._queues)
        try:
            while (task := self._queues[number].get()) is not None:
                began = time.monotonic()
                task.work.run(number, threads)
                # A step of a counter is atomic in the interpreter, so exactly one thread is the last.
                if next(task.ends) == threads:
                    task.work.finish()
                    self._finished.put(task)
                    self._wake()
                seconds = time.monotonic() - began
                self._busy_seconds[number] += seconds
                if TRACER.on:
                    TRACER.note("rows", began, seconds)
                # Its memory may be lent again while this thread waits for the next one.
                del task
        except Exception as error:  # noqa: BLE001 - whatever it is, the node fails with it
            self._failed(error)
