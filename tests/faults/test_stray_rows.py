"""A batch with a row that its table does not have: a clear error, and nothing of it reaches a shard."""

from __future__ import annotations

from collections.abc import Callable

from shadowsync.tests.support.in_process_cluster import InProcessCluster
from shadowsync.tests.support.node_faults import stray_row


def test_a_row_out_of_range_stops_the_job_and_is_named(in_process: Callable[..., InProcessCluster]) -> None:
    few: dict[str, dict[str, object]] = {"trainer": {"count": 1}, "sync": {"algorithm": "none"}}
    own = in_process(few, faults=(stray_row,)).start()
    assert own.wait() == 4, own.coordinator.text()
    assert any("a row was changed on its way" in line["text"] for line in own.run.log("reader-0"))
    line = own.coordinator.text().strip().splitlines()[-1]
    assert "reader-0 delivered batch (0, " in line
    assert "a row number is beyond the 2000 rows of table 3" in line
    assert "use one version of shadowsync" in line
    assert "Traceback" not in own.coordinator.text()
