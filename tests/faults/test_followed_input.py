"""The coordinator of a job that follows its input is killed: files that had come, and that come then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.faults.conftest import AnyCluster
from shadowsync.tests.integration.test_followed_input import OF_A_FILE, arrive, changes, incoming, trained  # noqa: F401
from shadowsync.tests.support.processes import wait_until
from shadowsync.watch.stop import end_input


def _wait_for(own: AnyCluster, examples: int) -> None:
    wait_until(lambda: trained(own.run) >= examples, f"{examples} are trained")


def test_another_coordinator_goes_on_with_the_files_in_their_order(
    cluster: Callable[..., AnyCluster],
    click_log: Path,
    incoming: Path,  # noqa: F811
) -> None:
    own = cluster(changes(incoming) | {"run": {"node_timeout_seconds": 2.0}}).start()
    arrive(click_log, incoming, "z.parquet")
    _wait_for(own, 2 * OF_A_FILE)
    own.coordinator.kill()
    # By its path it is the first, and the dead one had not seen it.
    arrive(click_log, incoming, "a.parquet")
    own.take_over()
    _wait_for(own, 3 * OF_A_FILE)
    asyncio.run(end_input(own.endpoint))
    assert own.wait(90.0) == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    report = own.run.report
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct == 3 * OF_A_FILE
    files = own.run.query("SELECT path FROM spans ORDER BY span")
    assert [Path(path).name for (path,) in files] == ["m.parquet", "z.parquet", "a.parquet"]
