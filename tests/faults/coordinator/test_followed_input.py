"""The coordinator of a job that follows its input is killed: files that had come, and that come then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from shadowsync.nodes.clients.requests import end_input
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.faults.conftest import AnyCluster
from shadowsync.tests.integration.data.test_followed_input import (
    OF_A_FILE,
    arrive,
    changes,
    incoming,  # noqa: F401
    trained,
)
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.resumed import going_on

pytestmark = pytest.mark.matrix


def _wait_for(own: AnyCluster, examples: int) -> None:
    wait_until(lambda: trained(own.run) >= examples, f"{examples} are trained")


def test_another_coordinator_goes_on_with_the_files_in_their_order(
    in_process: ClusterMaker,
    click_log: Path,
    incoming: Path,  # noqa: F811
) -> None:
    own = in_process(changes(incoming)).start()
    arrive(click_log, incoming, "z.parquet")
    _wait_for(own, 2 * OF_A_FILE)
    own.coordinator.kill()
    # By its path it is the first, and the dead one had not seen it.
    arrive(click_log, incoming, "a.parquet")
    own.take_over()
    _wait_for(own, 3 * OF_A_FILE)
    asyncio.run(end_input(own.endpoint))
    own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=3 * OF_A_FILE)
    files = own.run.query("SELECT path FROM spans ORDER BY span")
    assert [Path(path).name for (path,) in files] == ["m.parquet", "z.parquet", "a.parquet"]


def test_a_run_of_fixed_input_is_resumed_with_more_and_its_coordinator_is_replaced(
    in_process: ClusterMaker,
    click_log: Path,
    incoming: Path,  # noqa: F811
) -> None:
    fixed = changes(incoming)
    fixed["data"]["follow"] = False
    first = in_process(fixed).start()
    assert first.wait() == ExitCode.OK, first.coordinator.text()
    second = in_process(going_on(fixed, first.run, {"data": {"follow": True}})).start()
    arrive(click_log, incoming, "a.parquet")
    _wait_for(second, OF_A_FILE)
    second.coordinator.kill()
    (incoming / "m.parquet").unlink()
    second.take_over()
    arrive(click_log, incoming, "b.parquet")
    _wait_for(second, 2 * OF_A_FILE)
    asyncio.run(end_input(second.endpoint))
    report = second.ended(ExitCode.FINISHED_WITH_DEATHS)
    assert (report.examples.distinct, report.restored_examples) == (2 * OF_A_FILE, OF_A_FILE)
