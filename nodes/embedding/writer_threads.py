"""The threads of an embedding node that read and write its rows, where it has more than one of them."""

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

UNDER_WAY_LIMIT: Final = 16
_JOIN_SECONDS: Final = 2.0
_WAIT_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class _Task:
    """Work, what is to be called when it is done, and how many lanes have ended their part."""

    work: ShardWork
    done: Callable[[], None]
    ends: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class WriterThreads:
    """Shares work out over `threads` lanes; each does its part of all of it in the order in which it was put.

    All methods but `wake` and `failed`, which lanes call, belong to one thread, that of the socket.

    Args:
        threads: how many lanes.
        wake: called by a lane when work is done, so that `collect` is called.
        failed: called by a lane with whatever exception ends it; what was under way is then never done.
    """

    def __init__(
        self, threads: int, wake: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._wake = wake
        self._failed = failed
        self._under_way = 0
        self._finished: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        # Each holds what is under way at most, so it is bounded by UNDER_WAY_LIMIT.
        self._queues: list[queue.SimpleQueue[_Task | None]] = [queue.SimpleQueue() for _ in range(threads)]
        self._busy_seconds = [0.0] * threads
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"lane-{lane}", daemon=True)
            for lane in range(threads)
        ]

    @property
    def full(self) -> bool:
        """Whether nothing more should be put before something is done."""
        return self._under_way >= UNDER_WAY_LIMIT

    @property
    def busy_seconds(self) -> float:
        """How long the busiest lane has worked; any thread may read it."""
        return max(self._busy_seconds)

    def start(self) -> None:
        """Starts the lanes."""
        for thread in self._threads:
            thread.start()

    def put(self, work: ShardWork, done: Callable[[], None]) -> None:
        """Has the work done; `collect` or `settle` then calls `done`."""
        task = _Task(work, done)
        self._under_way += 1
        for waiting in self._queues:
            waiting.put(task)

    def collect(self) -> None:
        """Calls `done` for all that is done by now."""
        while not self._finished.empty():
            self._take(self._finished.get())

    def settle(self, stopping: Callable[[], bool]) -> None:
        """Waits until all is done, or `stopping` says that it will not be; the rows are then the caller's."""
        while self._under_way and not stopping():
            try:
                self._take(self._finished.get(timeout=_WAIT_SECONDS))
            except queue.Empty:
                continue

    def close(self) -> None:
        """Ends the lanes when they have done what was put."""
        for waiting in self._queues:
            waiting.put(None)
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def _take(self, task: _Task) -> None:
        self._under_way -= 1
        task.done()

    def _run(self, lane: int) -> None:
        torch.set_num_threads(1)
        lanes = len(self._queues)
        try:
            while (task := self._queues[lane].get()) is not None:
                began = time.monotonic()
                task.work.run(lane, lanes)
                # The interpreter takes a step of a counter whole, so exactly one lane is the last.
                if next(task.ends) == lanes:
                    task.work.finish()
                    self._finished.put(task)
                    self._wake()
                seconds = time.monotonic() - began
                self._busy_seconds[lane] += seconds
                if TRACER.on:
                    TRACER.note("rows", began, seconds)
                # Its memory may be lent again while this waits for the next one.
                del task
        except Exception as error:  # noqa: BLE001 - whatever it is, the node fails with it
            self._failed(error)
