"""Into how many parts batches are cut: on average, and in all processes of a trainer."""

from __future__ import annotations

import numpy as np
from shadowsync.nodes.replica.buffer import SharedMemory
from shadowsync.nodes.replica.replica import PartsOfBatches, PartsSetting


def test_the_parts_are_right_on_average() -> None:
    setting = PartsSetting(np.zeros(PartsSetting.SIZE, np.int64))
    batches = PartsOfBatches(setting)
    assert [batches.next() for _ in range(5)] == [1] * 5
    setting.set(2.4)
    assert [batches.next() for _ in range(5)] == [2, 2, 3, 2, 3]
    assert setting.parts == 2.4
    setting.set(1.001)
    assert sum(batches.next() for _ in range(1000)) == 1001
    setting.set(1.0)
    assert [batches.next() for _ in range(5)] == [1] * 5


def test_a_worker_process_sees_what_the_trainer_sets() -> None:
    trainer = SharedMemory.create()
    setting = PartsSetting(trainer.counters(PartsSetting.SIZE))
    seen = PartsSetting(SharedMemory.attach(trainer.descriptor).counters(PartsSetting.SIZE))
    assert seen.parts == 1.0
    setting.set(3.25)
    assert seen.parts == 3.25
    trainer.close()
