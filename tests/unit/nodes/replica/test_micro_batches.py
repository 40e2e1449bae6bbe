"""Into how many micro-batches batches are cut: on average, and in all processes of a trainer."""

from __future__ import annotations

import numpy as np
from shadowsync.nodes.replica.buffer import SharedMemory
from shadowsync.nodes.replica.replica import MicroBatchCounts, MicroBatchSetting


def test_the_micro_batches_are_right_on_average() -> None:
    setting = MicroBatchSetting(np.zeros(MicroBatchSetting.SIZE, np.int64))
    batches = MicroBatchCounts(setting)
    assert [batches.next() for _ in range(5)] == [1] * 5
    setting.set(2.4)
    assert [batches.next() for _ in range(5)] == [2, 2, 3, 2, 3]
    assert setting.mean == 2.4
    setting.set(1.001)
    assert sum(batches.next() for _ in range(1000)) == 1001
    setting.set(1.0)
    assert [batches.next() for _ in range(5)] == [1] * 5


def test_a_worker_process_sees_what_the_trainer_sets() -> None:
    trainer = SharedMemory.create()
    setting = MicroBatchSetting(trainer.counters(MicroBatchSetting.SIZE))
    seen = MicroBatchSetting(SharedMemory.attach(trainer.descriptor).counters(MicroBatchSetting.SIZE))
    assert seen.mean == 1.0
    setting.set(3.25)
    assert seen.mean == 3.25
    trainer.close()
