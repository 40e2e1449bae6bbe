"""How far a job is, from the file of its ledger."""

from __future__ import annotations

from pathlib import Path

from shadowsync.lab.chaos.faulted_job import Progress, progress_of
from shadowsync.nodes.coordinator.ledger.records import Acknowledged
from shadowsync.nodes.coordinator.ledger.store import LedgerStore
from shadowsync.tests.support.data.batches import batch_id


def test_batches_count_once_and_acknowledgements_each_time(tmp_path: Path) -> None:
    assert progress_of(tmp_path) is None, "no ledger yet"
    (tmp_path / "ledger.sqlite").touch()
    assert progress_of(tmp_path) is None, "no tables yet"
    (tmp_path / "ledger.sqlite").unlink()
    store = LedgerStore(tmp_path / "ledger.sqlite")
    assert progress_of(tmp_path) == Progress()
    store.acknowledge(Acknowledged(batch_id(n), 10, f"trainer-{n % 2}", False) for n in (0, 1, 2, 0))
    assert progress_of(tmp_path) == Progress(3, 4, 30, frozenset({"trainer-0", "trainer-1"}))
    store.close()
