"""The in-process cluster itself: what it starts ends, what it breaks is broken, and a thread left is seen."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

import pytest
import zmq
from shadowsync.pipeline.wire.messages import Push
from shadowsync.tests.support.jobs import in_process_cluster
from shadowsync.tests.support.jobs.in_process_cluster import InProcessCluster, in_process_clusters
from shadowsync.tests.support.jobs.in_process_node import Context
from shadowsync.tests.support.jobs.node_faults import Slowed, die, drop
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

Make = Callable[..., InProcessCluster]


def test_a_job_ends_with_a_log_of_each_node_though_a_message_was_dropped(cluster: Make) -> None:
    own = cluster(faults=(drop("trainer", Push, nth=7),)).start()
    assert own.wait() == 0, own.coordinator.text()
    assert own.run.logged("fault: a message was lost: push", ["trainer-0", "trainer-1"])
    assert own.report.examples.trained == EXAMPLES
    assert own.report.ledger.adds_up
    for node in own.everyone():
        assert node.code == 0
        own_lines = [line["text"] for line in own.run.log(node.name) if line["text"].startswith("joined as")]
        assert own_lines == ([] if node is own.coordinator else [f"joined as {node.name}"])


def test_a_trainer_dies_at_its_step_and_the_supervisor_tells(cluster: Make) -> None:
    slowed = Slowed()
    own = cluster(faults=(die("trainer-1", at_step=5), slowed), supervised=True).start()
    wait_until(lambda: own.run.logged("died (killed by SIGKILL)"), "it dies")
    slowed.release()
    assert own.wait() == 5, own.coordinator.text()
    assert own.node("trainer-1").code == -9
    ((trained,),) = own.run.query("SELECT count(*) FROM batches WHERE trainer = 'trainer-1'")
    assert trained < 5
    assert own.report.examples.distinct == EXAMPLES
    assert own.run.logged("trainer-1: died (killed by SIGKILL)")


def test_a_node_that_stands_still_is_silent_until_it_goes_on(cluster: Make) -> None:
    own = cluster({"data": {"epochs": 10_000}, "run": {"node_timeout_seconds": 60.0}}).start()
    own.wait_for_batches(20)
    for trainer in own.nodes["trainer"]:
        trainer.suspend()
    # What they have sent already still arrives.
    wait_until(lambda: _unchanged(own), "nothing is trained any more")
    stood_at = own.run.batches()
    for trainer in own.nodes["trainer"]:
        trainer.resume()
    own.wait_for_batches(stood_at + 20)
    own.coordinator.interrupt()
    assert own.wait() == 130


def _unchanged(own: InProcessCluster) -> bool:
    before = own.run.batches()
    threading.Event().wait(0.5)
    return own.run.batches() == before


def test_a_thread_that_is_left_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process_cluster, "ENOUGH_SECONDS", 0.1)
    over = threading.Event()
    with pytest.raises(AssertionError, match=r"a thread is left: .*straggler"), in_process_clusters():
        threading.Thread(target=over.wait, name="straggler").start()
    over.set()


def test_a_thread_that_python_did_not_start_is_no_leak() -> None:
    """As one of a library that calls back: Python has a dummy for it, which nobody can join."""
    asked = threading.Event()

    def call() -> None:
        threading.current_thread()
        asked.set()

    with in_process_clusters():
        _thread.start_new_thread(call, ())
        assert asked.wait(60.0)


def test_a_killed_node_says_nothing_while_its_sockets_end_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a thread that misses one socket could tell of it over another, and the node would have failed."""
    begun, go_on, term = threading.Event(), threading.Event(), zmq.Context.term

    def slow_term(own: zmq.Context[zmq.Socket[bytes]]) -> None:
        begun.set()
        assert go_on.wait(60.0)
        term(own)

    context = Context()
    with context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://talk")
        other.connect("inproc://talk")
        one.send_multipart([b"still", b"alive"])
        assert other.recv_multipart() == [b"still", b"alive"]
        monkeypatch.setattr(zmq.Context, "term", slow_term)
        kill = threading.Thread(target=context.cut)
        kill.start()
        assert begun.wait(60.0)
        try:
            for send in (one.send, lambda part: one.send_multipart([part, part], zmq.NOBLOCK, copy=False)):
                with pytest.raises(zmq.ContextTerminated):
                    send(b"I have failed")
            assert not other.poll(0)
        finally:
            go_on.set()
    kill.join(60.0)
    assert not kill.is_alive()
