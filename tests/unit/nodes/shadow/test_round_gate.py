"""The gate at which workers wait for a round of all trainers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from shadowsync.nodes.shadow import rounds
from shadowsync.nodes.shadow.rounds import STARVED_SECONDS, RoundGate

PATIENCE_SECONDS = 60.0


class GateWorker:
    """A thread that does what it is told, one call at a time, and says when each has returned."""

    def __init__(self, gate: RoundGate, index: int) -> None:
        self._gate = gate
        self._index = index
        self.returned = threading.Event()
        self._thread: threading.Thread | None = None

    def iterate(self) -> None:
        """An iteration, on a thread of its own."""

        def body() -> None:
            self._gate.work(self._index)
            self._gate.iterated(self._index)

        self._run(body)

    def begin_step(self) -> None:
        self._run(lambda: self._gate.work(self._index))

    def _run(self, what: Callable[[], None]) -> None:
        self.returned.clear()

        def body() -> None:
            what()
            self.returned.set()

        self._thread = threading.Thread(target=body, daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        """Whether the call returned in time."""
        return self.returned.wait(PATIENCE_SECONDS)


@pytest.fixture
def arrivals() -> threading.Semaphore:
    """Released whenever a worker comes to the gate."""
    return threading.Semaphore(0)


@pytest.fixture
def gate(arrivals: threading.Semaphore) -> Iterator[RoundGate]:
    """A gate for two workers and rounds after every second iteration."""

    def arrived() -> None:
        arrivals.release()

    gate = RoundGate(2, 2, arrived)
    yield gate
    gate.open()


def at_gate(gate: RoundGate, arrivals: threading.Semaphore, *indexes: int) -> list[GateWorker]:
    """Workers that came to the gate."""
    workers = [GateWorker(gate, index) for index in indexes]
    for worker in workers:
        worker.iterate()
        assert worker.ended()
        worker.iterate()
    for _ in workers:
        assert arrivals.acquire(timeout=PATIENCE_SECONDS)
    return workers


def test_a_round_is_due_when_all_workers_have_come(gate: RoundGate, arrivals: threading.Semaphore) -> None:
    gate.work(1)
    (first,) = at_gate(gate, arrivals, 0)
    assert not gate.enter(awaited=False)
    gate.iterated(1)
    second = GateWorker(gate, 1)
    second.iterate()
    assert arrivals.acquire(timeout=PATIENCE_SECONDS)
    assert gate.enter(awaited=False)
    assert not first.returned.is_set()
    assert not second.returned.is_set()
    gate.leave()
    assert first.ended()
    assert second.ended()


def test_only_every_kth_iteration_waits(gate: RoundGate) -> None:
    worker = GateWorker(gate, 0)
    worker.iterate()
    assert worker.ended()


def test_a_wanted_round_does_not_interrupt_work(gate: RoundGate, arrivals: threading.Semaphore) -> None:
    at_gate(gate, arrivals, 0)
    gate.work(1)
    assert not gate.enter(awaited=True)


def test_a_starved_worker_holds_no_round_up(
    gate: RoundGate, arrivals: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: now[0]))
    at_gate(gate, arrivals, 0)
    gate.work(1)
    gate.starve(1)
    assert not gate.enter(awaited=False), "it may only be waiting for the next batch"
    now[0] += 0.9 * STARVED_SECONDS
    assert not gate.enter(awaited=False)
    now[0] += 0.2 * STARVED_SECONDS
    assert gate.enter(awaited=False)


def test_starved_workers_start_no_round_of_their_own(gate: RoundGate) -> None:
    assert not gate.enter(awaited=False)
    assert gate.enter(awaited=True)


def test_work_begins_after_the_round(gate: RoundGate) -> None:
    assert gate.enter(awaited=True)
    worker = GateWorker(gate, 0)
    worker.begin_step()
    assert not worker.returned.wait(0.05)
    assert not gate.enter(awaited=True), "one round at a time"
    gate.leave()
    assert worker.ended()


def test_an_open_gate_lets_everyone_go(gate: RoundGate, arrivals: threading.Semaphore) -> None:
    first, second = at_gate(gate, arrivals, 0, 1)
    gate.open()
    assert first.ended()
    assert second.ended()
    assert not gate.enter(awaited=True)
