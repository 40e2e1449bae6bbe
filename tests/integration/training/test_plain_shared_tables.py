"""Columns that share a table learn what a plain torch loop learns that has one `nn.Embedding` for them.

The loop shares the model, the first values and the batches with the job, and none of its training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.source import BatchSource
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.storage.first_values import row_values
from shadowsync.pipeline.embedding.storage.optimizers import EPSILON
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.models.layers.sequences import EmbeddedSequence, Embeddings
from shadowsync.pipeline.models.registry import build_model
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.wire.messages import Delivery
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.tables.growing_lists import COLUMNS, ITEMS, job_of, write_log
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding_bag, pad

SAME_TO: Final = 1e-5
"""NE, and floats of rows. Sums of floats in another order are this close."""
LIST = COLUMNS["sums"]
SHARED: dict[str, Any] = {
    "clicked": "label",
    "item": "categorical",
    "history": {**LIST, "table": "item", "pooling": "none"},
    "means": {**LIST, "table": "item", "pooling": "mean"},
    "again": {"kind": "categorical", "source": "item", "table": "item"},
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("lists"))


def settings_of(log: Path, pooled_by: str, lookups_ahead: int) -> dict[str, dict[str, Any]]:
    return job_of(
        log,
        {},
        data={"columns": SHARED},
        model={"output_bias": 0.1, "table_rows": 3000},
        trainer={"optimizer": "adagrad", "lr": 0.02, "lookups_ahead": lookups_ahead, "precision": "float32"},
        embedding={"nodes": 2, "lr": 0.05, "placement": "rows"},
        tables={"item": {"pooled_by": pooled_by}},
    )


class PlainLoop:
    """One `nn.Embedding` for all columns of a table; with `apart` one for each column, the control."""

    def __init__(self, job: Job, *, apart: bool = False) -> None:
        self.source, self.columns = BatchSource(job), job.embedded_columns
        self.model = build_model(job, ())
        self.tables: dict[str, nn.Embedding] = {}
        for column in self.columns:
            table = column.table
            name = column.name if apart else table.name
            values = row_values(
                job.run.seed, column.number, np.arange(table.rows), table.dim, table.init_scale
            )
            own = self.tables.setdefault(name, nn.Embedding(table.rows, table.dim))
            own.weight.data.copy_(torch.from_numpy(values))
        self.of = {
            column.name: self.tables[column.name if apart else column.table.name] for column in self.columns
        }
        rows = [own.weight for own in self.tables.values()]
        self.optimizers = [
            torch.optim.Adagrad(self.model.parameters(), lr=job.trainer.lr),
            torch.optim.Adagrad(rows, lr=job.embedding.lr, eps=EPSILON),
        ]

    def train(self) -> PlainLoop:
        while (batch := self.source.next()) is not None:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(self.logits(batch), torch.from_numpy(batch.labels))
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in self.optimizers:
                optimizer.step()
        return self

    def ne(self) -> float:
        sums = QualitySums()
        with torch.no_grad():
            for batch in self.source.scored(self.source.plan.test):
                sums.add(self.logits(batch).numpy(), batch.labels)
        return present(sums.ne)

    def logits(self, batch: Delivery) -> torch.Tensor:
        single, bags, start = iter(batch.rows), iter(batch.bag_lengths), 0
        embeddings: Embeddings = []
        for column in self.columns:
            table = self.of[column.name]
            if not column.pooling:
                embeddings.append(table(torch.from_numpy(next(single).astype(np.int64))))
                continue
            lengths = torch.from_numpy(next(bags).astype(np.int64))
            stop = start + int(lengths.sum())
            rows = torch.from_numpy(batch.bag_rows[start:stop].astype(np.int64))
            start = stop
            if column.pooling == "none":
                longest = max(1, int(lengths.max()))
                lists = table(rows).split(lengths.tolist())
                padded = torch.stack([pad(own, (0, 0, 0, longest - len(own))) for own in lists])
                embeddings.append(EmbeddedSequence(padded, lengths))
            else:
                starts = lengths.cumsum(0) - lengths
                embeddings.append(embedding_bag(rows, table.weight, starts, mode=column.pooling))
        logits: torch.Tensor = self.model(torch.from_numpy(batch.dense), embeddings)
        return logits


@pytest.mark.parametrize(("pooled_by", "lookups_ahead"), [("nodes", 0), ("trainers", 8)])
def test_columns_of_one_table_learn_what_one_embedding_learns(
    cluster: ClusterMaker, log: Path, pooled_by: str, lookups_ahead: int
) -> None:
    """With rows looked up ahead where trainers have all of them; the control is an embedding a column."""
    own = cluster(settings_of(log, pooled_by, lookups_ahead)).start()
    own.ended()
    plain, control = PlainLoop(own.job).train(), PlainLoop(own.job, apart=True).train()
    wanted = plain.ne()
    assert wanted < 0.9
    assert own.run.ne == pytest.approx(wanted, abs=SAME_TO)
    assert abs(control.ne() - wanted) > 20 * SAME_TO
    assert run_virtual(own.job, Timing()).ne == pytest.approx(wanted, abs=SAME_TO)
    tables = SavedModel.open(own.run.folder).tables
    item = tables["item"]
    rows = [item.hash(one) for one in range(ITEMS)]
    vectors = plain.tables["item"].weight.detach()[rows]
    torch.testing.assert_close(item.lookup(rows), vectors, rtol=0, atol=SAME_TO)
    assert (control.tables["item"].weight.detach()[rows] - vectors).abs().max() > 0.01
    for name in ("history", "means", "again"):
        assert [tables[name].hash(one) for one in range(ITEMS)] == rows
        assert np.shares_memory(tables[name].weights, item.weights)
