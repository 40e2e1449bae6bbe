"""A trainer's side of a worker process: it starts it, talks to it, and notices when it is gone."""

from __future__ import annotations

import contextlib
import logging
import queue
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import zmq

from ...pipeline.errors import ExitCode, ShadowSyncError
from ...pipeline.wire.messages import WorkerNote
from ..runtime.entry_points import WORKER, python
from ..runtime.threads import Service
from ..supervisor.child import words_of
from .process_channel import WorkerPair
from .worker_order import WorkerOrder

POLL_MILLISECONDS = 100
END_SECONDS = 1.5

log = logging.getLogger(__name__)


class WorkerDied(ShadowSyncError):
    """A worker process is gone, or stands still; its trainer ends with it."""

    exit_code = ExitCode.STOPPED_BY_DEATH


class WorkerLine(Service):
    """One thread for one worker process, which lives no longer than it.

    Args:
        order: what the process is started with; its endpoint is filled in here.
        heard: called on this thread with each note of the process; while it waits, nothing else is heard.
        failed: called on this thread when the process dies, is silent for `run.node_timeout_seconds`, or
            what `heard` raises.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        order: WorkerOrder,
        heard: Callable[[WorkerNote], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(f"worker-{order.index}-line", failed)
        self._context = context
        self._order = order
        self._heard = heard
        self._posts: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._unsent: deque[tuple[str, dict[str, Any]]] = deque()
        self._limit_seconds = order.job.run.start_timeout_seconds

    def post(self, verb: str, body: dict[str, Any]) -> None:
        """Tells the process something; any thread may call it."""
        self._posts.put((verb, body))
        self.waker.wake()

    def body(self) -> None:
        """Starts the process and talks to it until one of the two ends."""
        pair = WorkerPair(self._context)
        try:
            process = self._start(pair.endpoint)
            try:
                self._converse(pair, process)
            finally:
                self._end(process)
        finally:
            pair.close()

    def _start(self, endpoint: str) -> subprocess.Popen[bytes]:
        order = replace(self._order, endpoint=endpoint)
        process = subprocess.Popen(
            python(WORKER),
            stdin=subprocess.PIPE,
            pass_fds=(order.descriptor,),
        )
        log.info("worker %d is process %d", order.index, process.pid)
        assert process.stdin is not None
        # The pipe stays open: its end tells the process that the trainer is gone.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(order.to_line())
            process.stdin.flush()
        return process

    def _converse(self, pair: WorkerPair, process: subprocess.Popen[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(pair.socket, zmq.POLLIN)
        poller.register(self.waker.fileno(), zmq.POLLIN)
        heard_at, end_at = time.monotonic(), None
        while True:
            poller.poll(POLL_MILLISECONDS)
            self.waker.clear()
            code = process.poll()
            if self._receive(pair):
                heard_at = time.monotonic()
            if self.stopping and end_at is None:
                end_at = time.monotonic() + END_SECONDS
                self.post("stop", {})
            if code is not None:
                if end_at is None:
                    raise self._death(process, words_of(code))
                return
            self._send(pair)
            if end_at is not None and time.monotonic() > end_at:
                return
            if end_at is None and time.monotonic() - heard_at > self._limit_seconds:
                raise self._death(process, f"was silent for {self._limit_seconds:g} s")

    def _receive(self, pair: WorkerPair) -> bool:
        """Hands on what has come; whether anything has."""
        came = False
        while (note := pair.receive()) is not None:
            came = True
            self._limit_seconds = self._order.job.run.node_timeout_seconds
            self._heard(note)
        return came

    def _send(self, pair: WorkerPair) -> None:
        """Sends what can be sent; a process that is only starting hears it later."""
        while not self._posts.empty():
            self._unsent.append(self._posts.get())
        while self._unsent and pair.send(*self._unsent[0]):
            self._unsent.popleft()

    def _death(self, process: subprocess.Popen[bytes], how: str) -> WorkerDied:
        return WorkerDied(f"worker process {self._order.index} (pid {process.pid}) died: {how}")

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Whatever state it is in, it is gone after this."""
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
