"""Rounds at a fixed rate across the connection between a trainer and its worker processes."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import cast

import pytest
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.shadow.fixed_rate import GatedRounds, RemoteGate, RemoteRoundLog, RemoteRounds
from shadowsync.nodes.shadow.rounds import RoundCounter, RoundGate
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.pipeline.wire.worker_messages import (
    DropSyncNode,
    GateArrive,
    GateStarve,
    GateWork,
    ReplaceSyncNode,
    RoundEnded,
    WorkerReport,
)
from shadowsync.tests.support.processes import wait_until

EVERY = 3


class TrainerEnd:
    """The trainer's end of the connection, as of `ProcessWorker`: one note after the other, at the gate."""

    def __init__(self, gate: RoundGate, index: int) -> None:
        self.reports: list[WorkerReport] = []
        self._rounds = GatedRounds(index, gate)
        self._notes: queue.SimpleQueue[WorkerReport | None] = queue.SimpleQueue()
        self.remote = RemoteGate(EVERY, self._notes.put)
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def step(self) -> threading.Thread:
        """One step of the worker, on a thread of its own, which has ended when the worker may go on."""

        def body() -> None:
            self.remote.before_step()
            self.remote.after_iteration()

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Ends the connection."""
        self._notes.put(None)
        self._thread.join(60.0)

    def _play(self) -> None:
        while (report := self._notes.get()) is not None:
            self.reports.append(report)
            if report == GateStarve():
                self._rounds.nothing_to_train()
                continue
            self._rounds.before_step() if report == GateWork() else self._rounds.arrive()
            self.remote.release()


def test_a_worker_waits_for_the_round_after_every_third_step() -> None:
    gate = RoundGate(1, EVERY, lambda: None)
    end = TrainerEnd(gate, 0)
    for _ in range(EVERY - 1):
        end.step().join(60.0)
    assert not gate.enter(wanted=False)
    third = end.step()
    wait_until(lambda: gate.has_waiting_worker, "the worker is at the gate")
    assert third.is_alive()
    assert gate.enter(wanted=False)
    assert third.is_alive()
    gate.leave()
    third.join(60.0)
    assert not third.is_alive()
    # What does not change its place at the gate is not told.
    assert end.reports == [GateWork(), GateArrive()]
    end.close()


def test_a_worker_without_input_does_not_hold_a_round_up_and_comes_back_after_it() -> None:
    gate = RoundGate(1, EVERY, lambda: None)
    end = TrainerEnd(gate, 0)
    end.step().join(60.0)
    assert not gate.enter(wanted=True)
    for _ in range(3):
        end.remote.nothing_to_train()
    wait_until(lambda: gate.enter(wanted=True), "the worker counts as starved")
    back = end.step()
    wait_until(lambda: end.reports[-1] == GateWork(), "the worker asks")
    assert back.is_alive()
    gate.leave()
    back.join(60.0)
    assert not back.is_alive()
    assert end.reports == [GateWork(), GateStarve(), GateWork()]
    end.close()


def test_an_open_gate_lets_pass() -> None:
    gate = RoundGate(2, EVERY, lambda: None)
    end = TrainerEnd(gate, 0)
    gate.open()
    for _ in range(2 * EVERY):
        end.step().join(60.0)
    assert end.reports == [GateWork(), GateArrive(), GateArrive()]
    end.close()


def test_a_worker_whose_process_ends_is_not_kept_at_the_gate() -> None:
    reported: queue.SimpleQueue[WorkerReport] = queue.SimpleQueue()
    # Nobody answers.
    gate = RemoteGate(1, reported.put)

    def steps() -> None:
        for _ in range(3):
            gate.before_step()
            gate.after_iteration()

    worker = threading.Thread(target=steps, daemon=True)
    worker.start()
    assert reported.get(timeout=10.0) == GateWork()
    assert worker.is_alive()
    gate.open()
    worker.join(60.0)
    assert not worker.is_alive()
    assert [reported.get_nowait() for _ in range(3)] == [GateArrive()] * 3


def test_rounds_with_the_center_are_counted_at_the_trainer_as_the_worker_saw_them() -> None:
    iterations = [0]
    shared = cast(TrainerContext, SimpleNamespace(total_iterations=lambda: iterations[0]))
    counter = RoundCounter(lambda: iterations[0])
    rounds = RemoteRounds(counter)
    reported: list[WorkerReport] = []
    notes = RemoteRoundLog(shared, reported.append)
    for now, started in ((10, 8), (30, 25)):
        iterations[0] = now
        notes.completed(started, 0.5, 0.1)
    notes.incomplete()
    # They arrive when the workers are further on already.
    iterations[0] = 37
    for ended in reported:
        assert isinstance(ended, RoundEnded)
        rounds.count_round(ended)
    counts = counter.metrics()
    assert (counts["rounds"], counts["incomplete_rounds"]) == (2, 1)
    assert (counts["gap_sum"], counts["gap_max"], counts["gap_open"]) == (30, 20, 7)
    assert counts["synced_iterations"] == 25
    assert counts["round_seconds"] == 1.0


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
def test_a_lost_and_replaced_sync_node_is_told_whether_the_process_is_there_or_not(early: bool) -> None:
    rounds = RemoteRounds(RoundCounter(lambda: 0))
    reported: list[DropSyncNode | ReplaceSyncNode] = []
    other = MemberInfo("sync-1", "sync", 1, "other", "tcp://127.0.0.1:1")
    if early:
        rounds.mark_lost("token")
        rounds.replace(0, other)
    rounds.bind(reported.append)
    if not early:
        rounds.mark_lost("token")
        rounds.replace(0, other)
    assert reported == [DropSyncNode("token"), ReplaceSyncNode(0, other)]
