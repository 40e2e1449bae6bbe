"""Into how many micro-batches batches are cut, on average."""

from __future__ import annotations

from shadowsync.nodes.replica.replica import MicroBatchCounts, MicroBatchSetting


def test_the_micro_batches_are_right_on_average() -> None:
    setting = MicroBatchSetting()
    batches = MicroBatchCounts(setting)
    assert [batches.next() for _ in range(5)] == [1] * 5
    setting.set(2.4)
    assert [batches.next() for _ in range(5)] == [2, 2, 3, 2, 3]
    assert setting.mean == 2.4
    setting.set(1.001)
    assert sum(batches.next() for _ in range(1000)) == 1001
    setting.set(1.0)
    assert [batches.next() for _ in range(5)] == [1] * 5
