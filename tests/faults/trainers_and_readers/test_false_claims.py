"""A trainer that says of its work that more examples are behind it: refused while the job trains."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from shadowsync.nodes.shadow.center_client import CenterClient
from shadowsync.pipeline.errors import ExitCode
from shadowsync.sync_algos.base import Slice
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.node_faults import Slowed, is_here, once
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

DECOUPLED: dict[str, dict[str, Any]] = {
    "run": {"node_timeout_seconds": 2.0},
    "trainer": {"count": 3},
    "sync": {"algorithm": "decoupled", "nodes": 2},
}
# However the machine stalls, there are as many merges.
OFTEN: dict[str, dict[str, Any]] = DECOUPLED | {"sync": DECOUPLED["sync"] | {"mode": "fixed", "every": 2}}
MANY = 9_000_000
REFUSED = "sent what cannot be: "


def many_examples(patch: pytest.MonkeyPatch) -> None:
    """trainer-1 says once that MANY examples are behind what it contributes."""
    exchange, due = CenterClient.exchange, once("too many examples", 20)

    async def wrong(
        self: CenterClient, part: Slice, values: torch.Tensor, examples: int | None = None
    ) -> torch.Tensor:
        lies = is_here("trainer-1") and due()
        return await exchange(self, part, values, MANY if lies else examples)

    patch.setattr(CenterClient, "exchange", wrong)


def test_it_costs_the_trainer_and_not_the_job(in_process: ClusterMaker) -> None:
    run = finished(in_process, OFTEN)
    assert run.report.events == []
    slowed = Slowed(40)
    own = in_process(OFTEN, faults=(many_examples, slowed)).start()
    wait_until(lambda: own.run.logged(REFUSED), "the trainer is refused")
    assert own.coordinator.poll() is None
    slowed.release()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    (said,) = [event for event in report.events if event.what.startswith(REFUSED)]
    assert said.node == "trainer-1"
    claimed, given = (int(text.replace(",", "")) for text in re.findall(r"[\d,]*\d", said.what))
    assert given < EXAMPLES < MANY <= claimed
    # Who has which batch is up to the machine, which makes a hundredth. What has learned nothing has 1.2.
    assert own.run.ne == pytest.approx(run.ne, rel=0.05)


@pytest.mark.parametrize("dies", ["reader", "trainer", "sync"])
def test_an_honest_trainer_is_never_accused(in_process: ClusterMaker, dies: str) -> None:
    """Not of batches of a dead reader, nor of those that are trained again, nor in a slice made anew."""
    slowed = Slowed(40)
    changes = DECOUPLED | {"data": {"readers": 2}}
    own = in_process(changes, supervised=True, faults=(slowed,)).start()
    own.wait_for_batches(30)
    own.nodes[dies][1].kill()
    wait_until(lambda: own.run.logged(f"{dies}-1"), "its death is known")
    if dies != "reader":
        own.join(dies)
        wait_until(lambda: own.run.logged("joined the running job"), "another has joined")
    slowed.release()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    assert [event for event in report.events if event.what.startswith(REFUSED)] == []
