"""A node without a supervisor dies between its hello and its ready message: another one has its place."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.nodes.coordinator.controller import JobController
from shadowsync.nodes.coordinator.state.verdicts import missing_nodes
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster
from shadowsync.tests.support.jobs.in_process_node import InProcess
from shadowsync.tests.support.jobs.node_faults import ROLES, never_ready
from shadowsync.tests.support.jobs.processes import until, wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

TIMEOUT_SECONDS = 2.0
SILENCE: dict[str, dict[str, Any]] = {"run": {"node_timeout_seconds": TIMEOUT_SECONDS}}


def _killed_while_it_prepares(own: InProcessCluster, role: str) -> InProcess:
    """Kill the node of the role that prepares for ever; the others are there."""

    def preparing() -> list[InProcess]:
        text = "fault: a node prepares for ever"
        return [node for node in own.nodes[role] if node.name and own.run.logged(text, [node.name])]

    wait_until(lambda: len(preparing()) == 1, "a node prepares")
    (victim,) = preparing()
    victim.kill()
    return victim


@pytest.mark.parametrize(
    "role",
    ["trainer", *(pytest.param(role, marks=pytest.mark.matrix) for role in ROLES if role != "trainer")],
)
def test_its_successor_has_its_place(in_process: ClusterMaker, role: str) -> None:
    own = in_process(SILENCE, faults=(never_ready(role),)).start()
    victim = _killed_while_it_prepares(own, role)
    successor = own.join(role)
    # No node that took part has died.
    report = own.ended(distinct=EXAMPLES)
    assert successor.name == victim.name
    assert (victim.name, "was silent for 2 s, and not ready") in [
        (one.node, one.what) for one in report.events
    ]


def test_one_that_prepares_keeps_its_place_however_long_it_takes(in_process: ClusterMaker) -> None:
    """The control: it lives, so one too many is refused and nobody is superseded."""
    own = in_process(SILENCE, faults=(never_ready("reader"),)).start()
    (holder,) = own.nodes["reader"]
    wait_until(lambda: holder.name, "the reader has joined")
    surplus = own.join("reader")
    assert surplus.wait() == ExitCode.CLUSTER
    assert "the job already has its 1 reader nodes" in surplus.text()
    assert holder.poll() is None


def test_without_a_successor_the_error_names_its_place(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = JobController._wait_for_nodes

    async def wait_once_it_is_silent(self: JobController) -> None:
        members, silence_of = self._state.members, self._server.silence_of
        await until(lambda: "silent" in missing_nodes(members, silence_of, TIMEOUT_SECONDS), "it is silent")
        await wait(self)

    monkeypatch.setattr(JobController, "_wait_for_nodes", wait_once_it_is_silent)
    changes = {"run": SILENCE["run"] | {"start_timeout_seconds": 3.0}}
    own = in_process(changes, faults=(never_ready("trainer"),)).start()
    victim = _killed_while_it_prepares(own, "trainer")
    assert own.coordinator.wait() == ExitCode.CLUSTER
    text = own.coordinator.text()
    assert "these nodes were not ready within 3 s: " in text
    assert f"{victim.name} (joined, and has been silent for " in text
