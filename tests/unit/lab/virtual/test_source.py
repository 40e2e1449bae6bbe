"""The batches of an emulated job, by trainer."""

from __future__ import annotations

import pytest
from shadowsync.lab.virtual.source import BatchSource
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.types import BatchId
from shadowsync.tests.support.jobs.runs import JobMaker


def taken(source: BatchSource, trainer: int) -> BatchId:
    delivery = source.next(trainer)
    assert delivery is not None
    return delivery.id


@pytest.mark.parametrize(
    ("consecutive", "of_first", "of_second"), [(1, [0, 2, 4], [1, 3, 5]), (3, [0, 1, 2], [3, 4, 5])]
)
def test_trainers_take_consecutive_batches(
    job_file: JobMaker, consecutive: int, of_first: list[int], of_second: list[int]
) -> None:
    trainer = {"count": 2, "consecutive_batches": consecutive}
    job = load_job(str(job_file({"trainer": trainer})))
    alone, source = BatchSource(job), BatchSource(job)
    in_order = [taken(alone, 0) for _ in range(6)]
    found = [(taken(source, 0), taken(source, 1)) for _ in range(3)]
    assert [first for first, _ in found] == [in_order[at] for at in of_first]
    assert [second for _, second in found] == [in_order[at] for at in of_second]
