"""What a trainer posts to a worker process, in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from shadowsync.nodes.shadow.fixed_rate import RemoteRounds
from shadowsync.nodes.shadow.rounds import RoundCounter
from shadowsync.nodes.trainer.worker_pool import ProcessWorkerPool
from shadowsync.nodes.worker import process_parent as worker_process
from shadowsync.nodes.worker.process_channel import WorkerProcessConfig
from shadowsync.nodes.worker.process_parent import ProcessWorker
from shadowsync.pipeline.wire.worker_messages import (
    ConnectMembers,
    DropSyncNode,
    WorkerHeartbeat,
    WorkerOrder,
    WorkerReport,
)


class FakeMonitor:
    """Records what is sent instead of running a process."""

    def __init__(self, *given: Any) -> None:
        self.sent: list[WorkerOrder] = []
        self.on_message: Callable[[WorkerReport], None] = given[2]

    def start(self) -> None:
        """No process."""

    def send(self, message: WorkerOrder) -> None:
        """Notes the message."""
        self.sent.append(message)


@pytest.fixture
def monitors(monkeypatch: pytest.MonkeyPatch) -> list[FakeMonitor]:
    """The monitors of the workers that a test makes."""
    made: list[FakeMonitor] = []

    def monitor(*given: Any) -> FakeMonitor:
        made.append(FakeMonitor(*given))
        return made[-1]

    monkeypatch.setattr(worker_process, "WorkerProcessMonitor", monitor)
    return made


def make_worker(index: int) -> ProcessWorker:
    order = WorkerProcessConfig(cast(Any, None), "trainer-0", 0, "t", index, "", "", 0, {})
    flat = torch.zeros(1)
    return ProcessWorker(cast(Any, None), order, flat, flat, lambda: None, lambda _: None)


def test_a_profile_has_the_threads_of_worker_processes(monitors: list[FakeMonitor]) -> None:
    pool = ProcessWorkerPool(cast(Any, None), cast(Any, None))
    pool._processes = [make_worker(0), make_worker(1)]
    assert pool.process_threads() == {}, "nothing was reported yet"
    for index, monitor in enumerate(monitors):
        threads = {"MainThread": (0.5, 0.0), f"worker-{index}": (3.0, float(index))}
        monitor.on_message(WorkerHeartbeat(metrics={}, process={}, threads=threads))
    assert pool.process_threads() == {
        "worker-0": (3.0, 0.0),
        "worker-0 MainThread": (0.5, 0.0),
        "worker-1": (3.0, 1.0),
        "worker-1 MainThread": (0.5, 0.0),
    }
    pool._memory.close()


def test_a_process_hears_of_the_others_before_it_hears_of_their_death(monitors: list[FakeMonitor]) -> None:
    worker = make_worker(0)
    rounds = RemoteRounds(RoundCounter(lambda: 0))
    # A sync node died between this trainer's getting ready and the meeting.
    rounds.mark_lost("token")
    worker.connect([], lambda _: None, lambda *_: None, rounds)
    assert monitors[0].sent == [ConnectMembers(()), DropSyncNode("token")]
