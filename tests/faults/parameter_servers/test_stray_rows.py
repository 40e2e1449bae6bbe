"""A batch with a row that its table does not have: a clear error, and nothing of it reaches a shard."""

from __future__ import annotations

from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.node_faults import stray_row


def test_a_row_out_of_range_costs_its_reader_and_is_named(in_process: ClusterMaker) -> None:
    """It was the only one, so the job stops, with a checkpoint."""
    few: dict[str, dict[str, object]] = {
        "run": {"rejoin_seconds": 1.0},
        "trainer": {"count": 1},
        "sync": {"algorithm": "none"},
    }
    own = in_process(few, faults=(stray_row,)).start()
    own.ended(ExitCode.STOPPED_BY_DEATH)
    assert any("a row was changed on its way" in line["text"] for line in own.run.log("reader-0"))
    events = own.run.report.events
    why = events[0].what
    assert why.startswith("sent what cannot be: a delivery to trainer-0: batch (0, ")
    assert "a row number is beyond the 2000 rows of table 3" in why
    assert "use one version of shadowsync" in why
    assert "reader" in own.coordinator.text()
    assert "Traceback" not in own.coordinator.text()
