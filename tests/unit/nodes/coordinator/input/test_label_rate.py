"""The label rate that the coordinator finds before the job starts, and hands to every node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.nodes.coordinator.input.label_rate import (
    LEAST_EXAMPLES,
    lacks_label_rates,
    sampled_label_rates,
)
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.input import sample as sample_module
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.input.sample import sample_batches
from shadowsync.pipeline.jobfile.load import job_of_tree

ROWS, POSITIVES = 8_000, 40


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rare positives in the first half; in the last quarter, by time, all are positive."""
    path = tmp_path_factory.mktemp("rare") / "log.parquet"
    labels = [int(n < ROWS // 2 and n % (ROWS // 2 // POSITIVES) == 0) for n in range(ROWS)]
    labels[3 * ROWS // 4 :] = [1] * (ROWS // 4)
    columns: dict[str, Any] = {"label": labels, "at": list(range(ROWS)), "id": [n % 9 for n in range(ROWS)]}
    columns["weight"] = [2.0 if label else 1.0 for label in labels]
    pq.write_table(pa.table(columns), path, row_group_size=1000)
    return path


def job_of(path: Path, *, columns: dict[str, Any] | None = None, **sections: Any) -> Job:
    named = {"label": "label", "at": "timestamp", "id": "categorical", **(columns or {})}
    data = {"format": "parquet", "path": str(path), "columns": named, **sections.pop("data", {})}
    return job_of_tree(
        {
            "data": data,
            "trainer": {"batch": 100},
            "run": {"deterministic": True},
            "sync": {"algorithm": "none"},
            **sections,
        }
    )


def rate_of(job: Job) -> float | None:
    rates = sampled_label_rates(job, plan_input(job).train)
    assert len(rates) <= 1
    return rates[0] if rates else None


def test_each_label_has_its_rate(log: Path) -> None:
    late = {"kind": "label", "source": "at", "threshold": 3 * ROWS // 4}
    job = job_of(log, columns={"late": late}, model={"name": "mmoe", "positive_weight": 3.0})
    positives = [POSITIVES + ROWS // 4, ROWS // 4]
    expected = [(3 * count + 0.5) / (3 * count + ROWS - count + 1) for count in positives]
    assert sampled_label_rates(job, plan_input(job).train) == pytest.approx(expected)


def test_the_rate_is_that_of_the_training_rows(log: Path) -> None:
    split = {"by": "time", "test_from": 3 * ROWS // 4}
    job = job_of(log, data={"order": "time", "split": split})
    assert rate_of(job) == pytest.approx((POSITIVES + 0.5) / (3 * ROWS // 4 + 1))
    assert rate_of(job_of(log)) == pytest.approx((POSITIVES + ROWS // 4 + 0.5) / (ROWS + 1)), "the control"


def test_sample_weights_count(log: Path) -> None:
    positives = 2.0 * (POSITIVES + ROWS // 4)
    negatives = ROWS - POSITIVES - ROWS // 4
    expected = (positives + 0.5) / (positives + negatives + 1)
    assert rate_of(job_of(log, columns={"weight": "weight"})) == pytest.approx(expected)


def test_negatives_that_training_leaves_out_do_not_count(log: Path) -> None:
    positives, negatives = POSITIVES + ROWS // 4, ROWS - POSITIVES - ROWS // 4
    expected = (positives + 0.5) / (positives + 0.1 * negatives + 1)
    assert rate_of(job_of(log, data={"negative_share": 0.1})) == pytest.approx(expected)


def test_when_there_is_none(log: Path) -> None:
    assert rate_of(job_of(log, model={"output_bias": "drawn"})) is None
    assert rate_of(job_of(log, model={"output_bias": -4.0})) is None
    assert sampled_label_rates(job_of(log), []) == ()


class SlowInput:
    """Input of which the first `examples` come once the time is up, and the rest not before `end`."""

    def __init__(self, examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.examples = examples
        self.first, self.rest = threading.Event(), threading.Event()
        monkeypatch.setattr(sample_module, "sample_batches", self._batches)

    def _batches(self, *arguments: Any) -> Iterator[Batch]:
        left = self.examples
        for batch in sample_batches(*arguments):
            (self.first if left > 0 else self.rest).wait()
            left -= len(batch)
            yield batch

    def end(self) -> None:
        """Let the rest come, and await the thread that reads it."""
        self.first.set()
        self.rest.set()
        for thread in threading.enumerate():
            if thread.name == "sample":
                thread.join(60.0)


def test_on_a_slow_machine_enough_examples_are_waited_for(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that began without the rate lost some of its quality, and nothing said so."""
    job = job_of(log, run={"start_timeout_seconds": 120.0})
    spans = plan_input(job).train
    slow = SlowInput(LEAST_EXAMPLES, monkeypatch)
    later = threading.Timer(0.2, slow.first.set)
    later.start()
    rates = sampled_label_rates(job, spans, seconds=0.0)
    slow.end()
    later.join()
    assert len(rates) == 1
    assert not lacks_label_rates(job, spans, rates)


def test_input_that_does_not_come_is_not_waited_for(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    job = job_of(log, run={"start_timeout_seconds": 0.2})
    spans = plan_input(job).train
    slow = SlowInput(0, monkeypatch)
    rates = sampled_label_rates(job, spans, seconds=0.0)
    slow.end()
    assert rates == ()
    assert lacks_label_rates(job, spans, rates)
    assert not lacks_label_rates(job, [], rates)
    assert not lacks_label_rates(job_of(log, model={"output_bias": "drawn"}), spans, rates)
