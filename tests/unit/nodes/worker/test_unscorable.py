"""A batch of a scoring pass to which the model gives logits that are not finite: an error that names it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.reader_client import ReaderClient
from shadowsync.nodes.worker.scoring import Scoring
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.pipeline.models.own.metrics import OwnMetrics
from shadowsync.pipeline.saved_model import evaluate as offline_eval
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.messages import Delivery
from shadowsync.tests.support.coordinator.recording_connection import RecordedConnection

ARRAYS: tuple[Any, ...] = (np.zeros(4, np.float32), np.zeros((4, 1), np.float32), np.zeros((1, 4), np.int32))
LOGITS = {"finite": np.zeros(4, np.float32), "not": np.array([0, np.nan, 0, 0], np.float32)}


class _Scorer:
    """A `Stepper` of which every batch has the same logits."""

    def __init__(self, logits: Any) -> None:
        self.logits = logits

    def score(self, delivery: Delivery, _requests: Any, _replies: Any, sums: PassSums) -> None:
        sums.add(self.logits, delivery.labels)


@pytest.mark.parametrize("kind", LOGITS)
def test_of_a_job(kind: str) -> None:
    scoring, stepper = Scoring(None), cast("Stepper", _Scorer(LOGITS[kind]))
    scoring.begin(3)
    batch = InFlightBatch(
        ReaderClient("reader-0", RecordedConnection().connection, 4),
        Delivery(1, 3, BatchId(0, 2, 5, 1), *ARRAYS),
    )
    if kind == "finite":
        scoring.score(batch, stepper)
        assert scoring.sums_of(3).quality.examples == 4, "the control"
        return
    with pytest.raises(JobFileError, match=r"reader-0: batch \(0, 2, 5, 1\) of scoring pass 3") as raised:
        scoring.score(batch, stepper)
    assert "logit 1 of 4 is nan" in str(raised.value)


@pytest.mark.parametrize("kind", LOGITS)
def test_of_a_saved_model(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    job = Job.model_validate({"data": {"format": "criteo_tsv", "path": ["x"]}})
    own = OwnMetrics(job, None)
    model = cast("Any", SimpleNamespace(job=job, logits=lambda _: LOGITS[kind], own_metrics=lambda: own))
    monkeypatch.setattr(offline_eval, "batches_of", lambda *_: [Batch(BatchId(0, 1, 0, 1), *ARRAYS)])
    spans = (Span(number, f"part-{number}.tsv", "bytes", 0, 100) for number in range(2))
    if kind == "finite":
        assert offline_eval.score_spans(model, spans).sums.examples == 4, "the control"
        return
    with pytest.raises(DataError, match=r"part-1.tsv: batch 0 of span 1 cannot be scored"):
        offline_eval.score_spans(model, spans)
