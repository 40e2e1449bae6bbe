"""A run folder that somebody removes while the job trains: it goes on, and says so at once and at its end."""

from __future__ import annotations

import pytest
from shadowsync.nodes.coordinator import server
from shadowsync.nodes.coordinator.state.outcome import FOLDER_REMOVED
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, slowed_at
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder

pytestmark = pytest.mark.no_kill


@pytest.mark.matrix
@pytest.mark.parametrize("removed", [True, False])
def test_it_is_told(in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, removed: bool) -> None:
    monkeypatch.setattr(server, "FOLDER_SECONDS", 0.05)
    own, slowed = slowed_at(20, in_process)
    folder = own.run.folder
    if removed:
        away = RunFolder(folder.rename(folder.with_name("removed")))
        wait_until(lambda: away.logged(FOLDER_REMOVED), "it is told at once")
    slowed.release()
    code = own.wait()
    assert own.run.report.examples.trained == EXAMPLES, "it trains on"
    assert code == own.run.report.exit_code == (ExitCode.RESOURCES if removed else ExitCode.OK)
    told = [event for event in own.run.report.events if FOLDER_REMOVED in event.what]
    assert len(told) == removed
    assert own.run.report.outcome == "finished"
    assert (f"finished; {FOLDER_REMOVED}" in own.coordinator.text()) == removed
