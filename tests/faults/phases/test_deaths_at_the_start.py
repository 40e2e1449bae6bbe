"""A node dies before training begins: another one takes its place, and the job is whole."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from shadowsync.nodes.coordinator.requests import RequestHandler
from shadowsync.nodes.coordinator.server import CoordinatorServer
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.wire.control.messages import Ready
from shadowsync.pipeline.wire.control.orders import Begin, ConnectPeers
from shadowsync.tests.faults.conftest import FOLLOWING, finish_input
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import until, wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.jobs.supervised import Supervise

CHANGES: dict[str, dict[str, Any]] = {
    "run": {"node_timeout_seconds": 2.0},
    "data": {"readers": 2, "span_bytes": 1 << 16},
    "embedding": {"nodes": 2},
}
ROLES = ("reader", "trainer", "embedding", "sync")
PHASES = {"introductions": ConnectPeers, "begin": Begin}
# Before the first group of nodes gets the order, before the second, and after it. The others: `make faults`.
TIMES = (1, 2, 3)
FIRST = {("reader", "introductions", 1), ("embedding", "begin", 2)}
MOMENTS = [
    pytest.param(role, phase, time, marks=() if (role, phase, time) in FIRST else pytest.mark.matrix)
    for role in ROLES
    for phase in PHASES
    for time in TIMES
]


def _ended_whole(own: InProcessCluster, code: ExitCode = ExitCode.FINISHED_WITH_DEATHS) -> Report:
    report = own.ended_whole(code)
    assert report.model_saved == "the center (easgd)"
    return report


@pytest.mark.parametrize("role", ROLES)
def test_before_all_are_there(in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    own = in_process(CHANGES, replaces=True)
    handle, all_but_one, released = RequestHandler.handle, threading.Event(), threading.Event()

    async def hold_one_back(handler: RequestHandler, token: str, request: Any, number: int) -> Any:
        missing = sum(handler._state.members.missing().values())
        if isinstance(request, Ready) and missing == 1 and not released.is_set():
            all_but_one.set()
            await until(released.is_set, "the dead one is replaced")
        return await handle(handler, token, request, number)

    monkeypatch.setattr(RequestHandler, "handle", hold_one_back)
    own.start()
    wait_until(all_but_one.is_set, "one node is missing")
    dead = next(node for node in own.nodes[role] if node.name)
    dead.kill()
    own.replace_dead(dead)
    released.set()
    # No node that took part has died.
    report = _ended_whole(own, ExitCode.OK)
    events = [(event.node, event.what) for event in report.events]
    assert (dead.name, "died (killed by SIGKILL)") in events


@pytest.mark.parametrize(("role", "phase", "time"), MOMENTS)
def test_while_the_job_starts(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, role: str, phase: str, time: int
) -> None:
    slowed = Slowed()
    own = in_process(CHANGES, replaces=True, faults=(slowed,))
    call_all, calls = CoordinatorServer.call_all, itertools.count(1)
    due, dead = threading.Event(), threading.Event()

    async def lose() -> None:
        due.set()
        await until(dead.is_set, "a node is dead")

    async def call_and_lose(self: CoordinatorServer, members: Any, request: Any, *more: Any) -> Any:
        number = next(calls) if type(request) is PHASES[phase] else 0
        if number == time:
            await lose()
        found = await call_all(self, members, request, *more)
        if number == 2 and time > number:
            await lose()
        return found

    monkeypatch.setattr(CoordinatorServer, "call_all", call_and_lose)
    own.start()
    wait_until(due.is_set, "the job starts")
    victim = own.nodes[role][0]
    victim.kill()
    replacing = threading.Thread(target=own.replace_dead, args=(victim,))
    replacing.start()
    wait_until(lambda: own.run.logged(f"{victim.name}: died"), "the coordinator knows of it")
    dead.set()
    replacing.join()
    wait_until(lambda: own.nodes[role][-1].name, "the other one has joined")
    slowed.release()
    _ended_whole(own)
    assert len(own.nodes[role]) == own.job.expected[role] + 1


def test_who_ends_by_itself_is_not_replaced(in_process: ClusterMaker) -> None:
    """The control: another one would end in the same way."""
    own = in_process(CHANGES, replaces=True)
    own.start_coordinator()
    own.join("reader")
    wait_until(lambda: own.nodes["reader"][0].name, "the reader has joined")
    own.nodes["reader"][0].kill()
    own.replace_dead(own.nodes["reader"][0], ExitCode.DATA)
    assert own.wait() == ExitCode.DATA
    assert "reader-0 died before the job started" in own.coordinator.text()
    assert len(own.nodes["reader"]) == 1


def test_the_supervisor_replaces_it(supervise: Supervise) -> None:
    job = supervise({"data": FOLLOWING})
    wait_until(lambda: job.nodes("reader"), "the reader is started")
    job.nodes("reader")[0].kill()
    wait_until(lambda: job.run.logged("killed by SIGKILL"), "the coordinator knows of it")
    finish_input(job)
    report = job.ended(ExitCode.OK, ExitCode.FINISHED_WITH_DEATHS)
    assert report.examples.distinct == EXAMPLES
    assert any("killed by SIGKILL" in event.what for event in report.events)
