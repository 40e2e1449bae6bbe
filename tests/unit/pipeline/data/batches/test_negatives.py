"""Negative downsampling: which rows of a span are kept, and that it is the same ones each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batches.negatives import NegativeSampler
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.tests.support.data.schemas import schema_job

ROWS, POSITIVES = 20_000, 400


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Each row has its number; every 50th is positive."""
    path = tmp_path / "log.csv"
    rows = [f"{int(n % (ROWS // POSITIVES) == 0)},{n},u{n % 7}" for n in range(ROWS)]
    path.write_text("y,number,user\n" + "\n".join(rows) + "\n")
    return path


def job_of(log: Path) -> Job:
    columns = {"y": "label", "number": {"kind": "dense", "transform": "none"}, "user": "categorical"}
    return schema_job(log, columns=columns)


def kept(job: Job, spans: Sequence[Span], sampler: NegativeSampler, window: int = 0) -> list[tuple[int, int]]:
    """The number and the label of each row of the batches."""
    source, found = JobInput(job), list[tuple[int, int]]()
    for span in spans:
        batches = source.batches(
            span, epoch=0, seed=1, batch=64, shuffle_window=window, bad_rows=BadRows(0), negatives=sampler
        )
        for batch in batches:
            found += zip(
                batch.dense[:, 0].astype(int).tolist(), batch.labels.astype(int).tolist(), strict=True
            )
    return found


def test_all_positives_and_a_share_of_the_negatives(log: Path) -> None:
    job, sampler = job_of(log), NegativeSampler(0.1, 0)
    found = kept(job, JobInput(job).plan(job.data.path), sampler)
    assert sum(label for _, label in found) == POSITIVES
    negatives = len(found) - POSITIVES
    assert negatives + sampler.dropped == ROWS - POSITIVES
    share = negatives / (ROWS - POSITIVES)
    assert abs(share - 0.1) < 4 * np.sqrt(0.1 * 0.9 / (ROWS - POSITIVES))
    assert [number for number, _ in found] == sorted(number for number, _ in found)


def test_the_rows_are_the_same_at_each_reading_and_others_for_another_seed(log: Path) -> None:
    job = job_of(log)
    spans = JobInput(job).plan(job.data.path)
    first = kept(job, spans, NegativeSampler(0.1, 0))
    assert sorted(kept(job, spans, NegativeSampler(0.1, 0), window=500)) == first
    assert kept(job, spans, NegativeSampler(0.1, 1)) != first
    assert {*first} < {*kept(job, spans, NegativeSampler(0.2, 0))}


def test_a_range_of_rows_has_those_of_the_whole(log: Path) -> None:
    """A span that is cut, where a part begins, keeps what it would keep whole."""
    job = job_of(log)
    (span,) = JobInput(job).plan(job.data.path)
    pieces = [replace(span, last=7_001), replace(span, first=7_001)]
    assert kept(job, pieces, NegativeSampler(0.1, 0)) == kept(job, [span], NegativeSampler(0.1, 0))


def test_a_share_of_one_keeps_all(log: Path) -> None:
    job, sampler = job_of(log), NegativeSampler(1.0, 0)
    assert len(kept(job, JobInput(job).plan(job.data.path), sampler)) == ROWS
    assert sampler.dropped == 0
