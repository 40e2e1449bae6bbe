"""Nodes die or leave while one trainer goes through the start of a job alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from shadowsync.nodes.coordinator.server import CoordinatorServer
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.wire.control.orders import Begin, ConnectPeers, ReadReplica
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import until, wait_until
from shadowsync.tests.support.jobs.short_start import ALGORITHMS, WARM, InOrder, algorithms, short_start

START, SLOW_FROM = 80, 30
CENTRAL = ("easgd", "fixed easgd", "decoupled")
CENTER = "with the weights of the center and a new optimizer"
OWN = "with the weights that it was ready with: those of the trainer that died are lost"


class Slow:
    """Slows the start of a job, and what follows it until those that join have trained a batch."""

    def __init__(self) -> None:
        self.faults = self._start, self._joining = Slowed(SLOW_FROM), Slowed(START)

    def release_start(self) -> None:
        """Let the start go on at full speed."""
        self._start.release()

    def release(self, own: InProcessCluster, order: InOrder, *joining: str) -> None:
        """The same, and all of it once these trainers have trained after the start."""
        self.release_start()
        wait_until(
            lambda: set(joining) <= set(order[START:]) or own.coordinator.poll() is not None,
            f"{joining} train",
        )
        self._joining.release()


def in_start(
    in_process: ClusterMaker, sync: str, trainers: int = 3, **options: Any
) -> tuple[InProcessCluster, Slow, InOrder]:
    """A job in its start, through which one trainer goes slowly, and who trains each of its batches."""
    slowed, order = Slow(), InOrder()
    changes = {
        "run": {"node_timeout_seconds": 3.0},
        "trainer": {"count": trainers, "optimizer": "adagrad"},
        "embedding": WARM,
        "sync": ALGORITHMS[sync],
        "checkpoint": {"every_seconds": 0},
    }
    faults = (short_start(START), *slowed.faults, order)
    own = in_process(changes, faults=faults, **options).start()
    own.wait_for_batches(SLOW_FROM)
    return own, slowed, order


def require_whole(own: InProcessCluster, code: ExitCode = ExitCode.FINISHED_WITH_DEATHS) -> list[str]:
    """Wait for the end; everything is trained, and the ledger adds up. Gives the events."""
    return [f"{event.node}: {event.what}" for event in own.ended_whole(code).events]


@pytest.mark.parametrize("sync", algorithms("easgd", "bmuf", without="gaia"))
def test_another_one_goes_on_alone(in_process: ClusterMaker, sync: str) -> None:
    own, slowed, order = in_start(in_process, sync, supervised=True)
    own.node("trainer-0").kill()
    text = "trainer-1: goes on alone with the start of the job"
    wait_until(lambda: own.run.logged(text), text)
    slowed.release(own, order, "trainer-2")
    events = require_whole(own)
    assert f"{text}, {CENTER if sync in CENTRAL else OWN}" in events
    assert set(order[:START]) == {"trainer-0", "trainer-1"}
    assert order[SLOW_FROM:START].count("trainer-1") > 0
    assert "trainer-2" in order[START:]
    (joined,) = (what for what in events if "joined after the start of" in what)
    assert joined.startswith("coordinator: trainer-2 joined after the start of ")
    assert joined.endswith("with the weights and the optimizer of trainer-1")


@pytest.mark.parametrize("sync", ["easgd", pytest.param("bmuf", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("moment", [ConnectPeers, Begin])
def test_it_dies_before_it_has_begun(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, moment: type[Any], sync: str
) -> None:
    """Perhaps before it has given the center its first values: the next one does."""
    due, dead = threading.Event(), threading.Event()
    call = CoordinatorServer.call

    async def call_and_lose(self: CoordinatorServer, member: Any, request: Any, *more: Any) -> Any:
        if type(request) is moment and member.info.name == "trainer-0":
            due.set()
            await until(dead.is_set, "it is dead")
        return await call(self, member, request, *more)

    monkeypatch.setattr(CoordinatorServer, "call", call_and_lose)
    changes = {"trainer": {"count": 3}, "embedding": WARM, "sync": ALGORITHMS[sync]}
    slowed, order = Slow(), InOrder()
    slowed.release_start()
    faults = (short_start(START), *slowed.faults, order)
    own = in_process(changes, replaces=True, faults=faults).start()
    wait_until(due.is_set, "the job starts")
    victim = own.node("trainer-0")
    victim.kill()
    # Answered once the job trains.
    replacing = threading.Thread(target=own.replace_dead, args=(victim,))
    replacing.start()
    wait_until(lambda: own.run.logged("trainer-0: died"), "the coordinator knows of it")
    dead.set()
    replacing.join()
    slowed.release(own, order, "trainer-2")
    events = require_whole(own)
    text = "trainer-1: goes on alone with the start of the job"
    assert [what for what in events if what.startswith(text)], events
    assert set(order[:START]) == {"trainer-1"}
    assert {"trainer-1", "trainer-2"} <= set(order) <= {"trainer-1", "trainer-2", "trainer-3"}


def test_the_control_without_another_one_and_a_center_the_job_stops(in_process: ClusterMaker) -> None:
    own, slowed, order = in_start(in_process, "bmuf", 2, supervised=True)
    own.node("trainer-1").kill()
    wait_until(lambda: own.run.logged("trainer-1: died"), "the coordinator knows of it")
    own.node("trainer-0").kill()
    slowed.release(own, order)
    assert own.wait() == ExitCode.STOPPED_BY_DEATH, own.coordinator.text()
    assert own.run.report.outcome == "stopped: the last trainer died"


@pytest.mark.parametrize("replaced", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_one_that_waits_dies(in_process: ClusterMaker, *, replaced: bool) -> None:
    own, slowed, order = in_start(in_process, "bmuf", replaces=True)
    victim = own.node("trainer-1")
    victim.kill()
    if replaced:
        own.replace_dead(victim)
        wait_until(lambda: "trainer-3" in str(own.status()["nodes"]), "another one is there")
    else:
        wait_until(lambda: own.run.logged("trainer-1: was silent"), "the coordinator knows of it")
    assert set(order) == {"trainer-0"}
    slowed.release(own, order, "trainer-2", *(["trainer-3"] if replaced else []))
    events = require_whole(own)
    assert set(order[:START]) == {"trainer-0"}
    assert set(order) == {"trainer-0", "trainer-2"} | ({"trainer-3"} if replaced else set())
    joined = "trainer-3: joined the running job, with the weights and the optimizer of trainer-0"
    assert (joined in events) == replaced


@pytest.mark.no_kill
@pytest.mark.parametrize("sync", ["easgd", pytest.param("bmuf", marks=pytest.mark.matrix)])
def test_it_leaves_and_another_one_goes_on_first(in_process: ClusterMaker, sync: str) -> None:
    own, slowed, order = in_start(in_process, sync)
    own.node("trainer-0").terminate()
    assert own.node("trainer-0").wait() == ExitCode.OK, own.node("trainer-0").text()
    slowed.release(own, order, "trainer-1", "trainer-2")
    events = require_whole(own, ExitCode.OK)
    text = "goes on alone with the start of the job, with the weights and the optimizer of trainer-0"
    assert f"trainer-1: {text}" in events
    assert "trainer-0: left the job as requested" in events
    assert set(order) == {"trainer-0", "trainer-1", "trainer-2"}
    assert "trainer-2" not in order[:START]


@pytest.mark.no_kill
def test_one_that_waits_leaves(in_process: ClusterMaker) -> None:
    own, slowed, order = in_start(in_process, "bmuf")
    own.node("trainer-1").terminate()
    assert own.node("trainer-1").wait() == ExitCode.OK, own.node("trainer-1").text()
    slowed.release(own, order, "trainer-2")
    events = require_whole(own, ExitCode.OK)
    assert "trainer-1: left the job as requested" in events
    assert set(order) == {"trainer-0", "trainer-2"}


@pytest.mark.parametrize("sync", ["easgd", pytest.param("bmuf", marks=pytest.mark.matrix)])
def test_the_coordinator_dies(in_process: ClusterMaker, sync: str) -> None:
    own, slowed, order = in_start(in_process, sync)
    own.coordinator.kill()
    own.take_over()
    slowed.release(own, order, "trainer-0", "trainer-1", "trainer-2")
    events = require_whole(own)
    assert [what for what in events if "died" in what or "silent" in what] == events[1:2], "the coordinator"
    assert events[-1].startswith("coordinator: 2 trainers joined after the start of ")
    assert set(order[:START]) == {"trainer-0"}
    assert set(order[START:]) == {"trainer-0", "trainer-1", "trainer-2"}


@pytest.mark.parametrize(
    ("victim", "request_type"),
    [
        ("trainer-0", ReadReplica),
        ("trainer-1", Begin),
        pytest.param("trainer-0", ConnectPeers, marks=pytest.mark.matrix),
        pytest.param("trainer-0", Begin, marks=pytest.mark.matrix),
        pytest.param("trainer-1", ConnectPeers, marks=pytest.mark.matrix),
        pytest.param("trainer-1", ReadReplica, marks=pytest.mark.matrix),
    ],
)
def test_one_dies_while_the_others_join(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, victim: str, request_type: type[Any]
) -> None:
    """The trainer that went through the start, or one that joins: no other one is lost."""
    due, dead = threading.Event(), threading.Event()
    call = CoordinatorServer.call

    async def call_and_lose(self: CoordinatorServer, member: Any, request: Any, *more: Any) -> Any:
        started = self.state.ledger.examples_so_far >= self.state.job.start_examples
        if started and type(request) is request_type and not due.is_set():
            due.set()
            await until(dead.is_set, "a node is dead")
        return await call(self, member, request, *more)

    monkeypatch.setattr(CoordinatorServer, "call", call_and_lose)
    own, slowed, order = in_start(in_process, "bmuf", supervised=True)
    slowed.release_start()
    wait_until(due.is_set, "the others join")
    own.node(victim).kill()
    wait_until(lambda: own.run.logged(f"{victim}: died"), "the coordinator knows of it")
    dead.set()
    living = {"trainer-1", "trainer-2"} - {victim}
    slowed.release(own, order, *living)
    events = require_whole(own)
    assert living <= set(order[START:])
    (joined,) = (what for what in events if "joined after the start of" in what)
    lost = victim == "trainer-0" and request_type is not Begin
    assert joined.endswith(OWN if lost else "with the weights and the optimizer of trainer-0")
