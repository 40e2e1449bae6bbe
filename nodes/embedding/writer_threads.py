"""Threads that read and write the rows of an embedding node with several threads."""

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
    """Work, its callback, and the number of threads that have done their part."""

    work: ShardWork
    done: Callable[[], None]
    ends: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class WriterThreads:
    """Split each piece of work over threads, in the order of submission.

    All methods belong to one thread, that of the socket.

    Args:
        threads: number of threads.
        wake: called by one of the threads when work is done, so that `collect` is called.
        failed: called by one of the threads with the exception that ends it; work in progress is then never
            done.
    """

    def __init__(
        self, threads: int, wake: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._wake = wake
        self._failed = failed
        self._in_progress = 0
        self._finished: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        # Each holds at most the work in progress, so it is bounded by MAX_IN_PROGRESS.
        self._queues: list[queue.SimpleQueue[_Task | None]] = [queue.SimpleQueue() for _ in range(threads)]
        self._busy_seconds = [0.0] * threads
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"rows-{number}", daemon=True)
            for number in range(threads)
        ]

    @property
    def full(self) -> bool:
        """Whether no more should be submitted before some work is done."""
        return self._in_progress >= MAX_IN_PROGRESS

    @property
    def busy_seconds(self) -> float:
        """Seconds that the busiest thread has worked; any thread may read it."""
        return max(self._busy_seconds)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, work: ShardWork, done: Callable[[], None]) -> None:
        """Submit work; `collect` or `wait_idle` later calls `done`."""
        task = _Task(work, done)
        self._in_progress += 1
        for tasks in self._queues:
            tasks.put(task)

    def collect(self) -> None:
        """Call `done` for all finished work."""
        while not self._finished.empty():
            self._take(self._finished.get())

    def wait_idle(self, stopping: Callable[[], bool]) -> None:
        """Wait until all work is done, or `stopping` says that it will not be.

        Afterwards the caller owns the rows.
        """
        while self._in_progress and not stopping():
            try:
                self._take(self._finished.get(timeout=_WAIT_SECONDS))
            except queue.Empty:
                continue

    def close(self) -> None:
        """End the threads after the submitted work."""
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
                # `next` is atomic in the interpreter, so exactly one thread is the last.
                if next(task.ends) == threads:
                    task.work.finish()
                    self._finished.put(task)
                    self._wake()
                seconds = time.monotonic() - began
                self._busy_seconds[number] += seconds
                if TRACER.on:
                    TRACER.note("rows", began, seconds)
                # Frees its memory to be lent again while this thread waits for the next task.
                del task
        except Exception as error:  # noqa: BLE001 - whatever it is, the node fails with it
            self._failed(error)
