"""The threads of an embedding node: in order, at once, bounded, and what happens when one fails."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import pytest
import zmq
from shadowsync.nodes.embedding.server import ShardService
from shadowsync.nodes.embedding.writer_threads import MAX_IN_PROGRESS, WriterThreads
from shadowsync.nodes.runtime.threads import POLL_MILLISECONDS
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.bank import RowBank
from shadowsync.pipeline.embedding.storage.shard_work import ShardWork
from shadowsync.pipeline.wire import frames
from shadowsync.pipeline.wire.messages import Failure, Lookup, Push, Pushed, Vectors
from shadowsync.pipeline.wire.sockets import Connection
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.expected import of_type
from shadowsync.tests.support.held_memory import count_allocations
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.tables.shard_service import answer, ask, running_shard
from shadowsync.tests.support.tables.tables import make_tables

Context = zmq.Context[zmq.Socket[bytes]]
ROWS, DIM, ENOUGH_SECONDS = 40, 4, 60.0


class Noted:
    """Work that notes who did what, and waits in `run` for what it is given."""

    def __init__(self, name: int, notes: list[tuple[int, int]], wait: Callable[[], Any] = lambda: None):
        self._name, self._notes, self._wait = name, notes, wait
        self.finished_by: list[str] = []

    def run(self, thread: int, _: int) -> None:
        self._wait()
        self._notes.append((thread, self._name))

    def finish(self) -> None:
        self.finished_by.append(threading.current_thread().name)

    @property
    def as_work(self) -> ShardWork:
        return cast(ShardWork, self)


def unwanted(error: BaseException) -> None:
    pytest.fail(f"a thread failed: {error}")


def late() -> Callable[[], bool]:
    """Whether what is to be done at once is not done after ENOUGH_SECONDS, which fails the test."""
    until = time.monotonic() + ENOUGH_SECONDS

    def is_late() -> bool:
        if time.monotonic() > until:
            pytest.fail(f"the threads are not at rest after {ENOUGH_SECONDS} s")
        return False

    return is_late


def test_each_thread_does_all_work_in_the_order_it_was_put_and_one_finishes_it() -> None:
    woken = threading.Event()
    threads = WriterThreads(3, woken.set, unwanted)
    threads.start()
    notes: list[tuple[int, int]] = []
    done: list[int] = []
    works = [Noted(number, notes) for number in range(12)]
    for number, work in enumerate(works):
        threads.submit(work.as_work, lambda number=number: done.append(number))  # type: ignore[misc]
    threads.wait_idle(late())
    threads.close()
    assert woken.is_set()
    assert sorted(done) == list(range(12))
    for thread in range(3):
        assert [name for who, name in notes if who == thread] == list(range(12))
    assert all(len(work.finished_by) == 1 for work in works)
    assert threads.busy_seconds > 0


def test_nothing_is_done_before_the_last_thread_is() -> None:
    go_on, notes = threading.Event(), list[tuple[int, int]]()

    class OneIsSlow(Noted):
        def run(self, thread: int, threads: int) -> None:
            if thread == 2:
                go_on.wait(ENOUGH_SECONDS)
            super().run(thread, threads)

    threads = WriterThreads(3, lambda: None, unwanted)
    threads.start()
    work, done = OneIsSlow(7, notes), list[int]()
    threads.submit(work.as_work, lambda: done.append(7))
    # A thread that has noted it may not have counted itself yet.
    wait_until(lambda: all(threads._busy_seconds[:2]), "two of three threads are done")
    threads.collect()
    assert not done
    assert not work.finished_by
    go_on.set()
    threads.wait_idle(late())
    threads.close()
    assert (done, work.finished_by) == ([7], ["rows-2"])


def test_threads_work_at_once() -> None:
    # Neither gets on before the other has come.
    both = threading.Barrier(2)
    threads = WriterThreads(2, lambda: None, unwanted)
    threads.start()
    done: list[int] = []
    threads.submit(Noted(0, [], lambda: both.wait(ENOUGH_SECONDS)).as_work, lambda: done.append(0))
    threads.wait_idle(late())
    threads.close()
    assert done == [0]


def test_no_more_is_taken_than_is_done() -> None:
    go_on = threading.Event()
    threads = WriterThreads(2, lambda: None, unwanted)
    threads.start()
    for number in range(MAX_IN_PROGRESS):
        assert not threads.full
        threads.submit(Noted(number, [], lambda: go_on.wait(ENOUGH_SECONDS)).as_work, lambda: None)
    assert threads.full
    go_on.set()
    threads.wait_idle(late())
    assert not threads.full
    threads.close()


def test_a_thread_that_raises_fails_the_node_and_waiting_ends_with_it() -> None:
    failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    threads = WriterThreads(2, lambda: None, failures.put)
    threads.start()

    def broken() -> None:
        raise RuntimeError("broken")

    threads.submit(Noted(0, [], broken).as_work, lambda: pytest.fail("it is not done"))
    assert str(failures.get(timeout=ENOUGH_SECONDS)) == "broken"
    stopping = threading.Event()
    threading.Timer(0.05, stopping.set).start()
    threads.wait_idle(stopping.is_set)
    threads.close()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Pushes wait for it in their threads."""
    go_on = threading.Event()
    apply = RowBank.apply

    def waiting(bank: RowBank, *others: Any) -> None:
        assert go_on.wait(ENOUGH_SECONDS)
        apply(bank, *others)

    monkeypatch.setattr(RowBank, "apply", waiting)
    return go_on


def running(
    context: Context, failed: Callable[[BaseException], None]
) -> AbstractContextManager[tuple[ShardService, Connection]]:
    plan = TablePlan.make(make_tables([ROWS], DIM, lr=1.0), 1)
    return running_shard(context, failed, plan, threads=2)


def push(number: int) -> Push:
    rows = np.arange(ROWS, dtype=np.int32)
    return Push(number, batch_id(number), 0, rows, np.ones(ROWS * DIM, np.float32))


def test_a_flood_waits_in_the_socket_and_a_command_finds_the_threads_at_rest(
    context: Context, failures: list[BaseException], held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[int | None, list[Any]]] = []
    poll = zmq.Poller.poll

    def noted(poller: zmq.Poller, timeout: int | None = None) -> list[Any]:
        found = poll(poller, timeout)
        if threading.current_thread() is not threading.main_thread():
            waits.append((timeout, found))
        return found

    monkeypatch.setattr(zmq.Poller, "poll", noted)
    with running(context, failures.append) as (service, connection):
        first = next(iter(service.store.pieces()))[1]["weights"]
        before = np.array(first)
        many = 3 * MAX_IN_PROGRESS
        for number in range(many):
            connection.send(push(number))
        wait_until(lambda: service.metrics()["applied_batches"] == MAX_IN_PROGRESS, "the threads are full")
        # It takes no more, and does not spin: it waits, and what is in its socket does not wake it.
        waited = len(waits)
        wait_until(lambda: len(waits) >= waited + 3, "it waits")
        assert waits[waited + 1 : waited + 3] == 2 * [(POLL_MILLISECONDS, [])]
        assert service.metrics()["applied_batches"] == MAX_IN_PROGRESS
        seen: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
        service.call(lambda: seen.put((len(service.applied), float((before - first[:])[0, 0]))))
        held.set()
        applied, moved = seen.get(timeout=ENOUGH_SECONDS)
        # What is noted as applied is what the rows have, at whatever point that is.
        assert moved == pytest.approx(applied, abs=1e-3)
        replies = [of_type(Pushed, answer(connection)).request for _ in range(many)]
        assert sorted(replies) == list(range(many))


def test_a_lookup_sees_the_pushes_that_came_before_it_and_none_after(
    context: Context, failures: list[BaseException], held: threading.Event
) -> None:
    rows = np.arange(ROWS, dtype=np.int32)
    values, repeated = {}, []
    with running(context, failures.append) as (_, connection):
        for message in (Lookup(0, rows), push(1), Lookup(2, rows), push(1), push(3), Lookup(4, rows)):
            connection.send(message)
        held.set()
        for _ in range(6):
            reply = answer(connection)
            if isinstance(reply, Vectors):
                values[reply.request] = (reply.version, reply.values.copy())
            else:
                assert isinstance(reply, Pushed)
                repeated.append((reply.request, reply.repeated))
    assert [values[number][0] for number in (0, 2, 4)] == [0, 1, 2]
    for number, count in ((2, 1), (4, 2)):
        np.testing.assert_allclose(values[0][1] - values[number][1], count, atol=1e-5)
    assert sorted(repeated) == [(1, False), (1, True), (3, False)]


def test_a_thread_that_fails_fails_the_service(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def broken(*_: Any) -> None:
        raise RuntimeError("broken rows")

    monkeypatch.setattr(RowBank, "apply", broken)
    with running(context, failed.put) as (_, connection):
        connection.send(push(0))
        assert str(failed.get(timeout=ENOUGH_SECONDS)) == "broken rows"


def test_no_command_runs_on_rows_that_threads_are_at_when_the_service_stops(
    context: Context, failures: list[BaseException], held: threading.Event
) -> None:
    with running(context, failures.append) as (service, connection):
        connection.send(push(0))
        wait_until(lambda: service.metrics()["applied_batches"] == 1, "it is in the threads")
        finishing, ran = threading.Event(), list[int]()
        finish_taken = service.finish_taken

        def noted() -> None:
            finishing.set()
            finish_taken()

        service.finish_taken = noted  # type: ignore[method-assign]
        service.call(lambda: ran.append(len(service.applied)))
        assert finishing.wait(ENOUGH_SECONDS)
        service.stop()
        wait_until(lambda: service.listener.socket.closed or bool(ran), "it ends")
        held.set()
        assert service.join(60.0)
        assert not ran


def test_an_answer_that_is_too_large_to_send_is_refused_and_its_buffer_used_again(
    context: Context, failures: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    allocations = count_allocations(monkeypatch)
    rows = np.arange(ROWS, dtype=np.int32)
    with running(context, failures.append) as (service, connection):
        monkeypatch.setattr(frames, "MAX_TENSOR_BYTES", ROWS * DIM * 4 - 1)
        for number in range(8):
            reply = of_type(Failure, ask(connection, Lookup(number, rows)))
            assert (reply.request, "may be sent" in reply.what) == (number, True)
        of_type(Vectors, ask(connection, Lookup(9, rows[1:])))
        # Each of the two threads may still refer to the last buffer that it filled.
        assert allocations(service._pool) <= 1 + 2
        assert not failures
