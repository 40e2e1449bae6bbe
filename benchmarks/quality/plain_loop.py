"""A plain torch loop in one process, with a job's model, settings and batches.

    from shadowsync.benchmarks.quality.plain_loop import logistic_loop, plain_loop

No nodes, no replicas, no threads: `torch.optim.Adagrad`, tables as tensors, one batch after the other.
`plain_quality.py` compares jobs of one or more trainers with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from shadowsync.lab.virtual.source import BatchSource
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.models.registry import build_model
from shadowsync.pipeline.wire.messages import Delivery
from torch.nn.functional import binary_cross_entropy_with_logits

EPSILON = 1e-8


@dataclass(frozen=True)
class Scored:
    """Quality of a loop on the test data, and progressively before its steps."""

    test: QualitySums
    progressive: QualitySums


def plain_loop(job: Job) -> Scored:
    """Train the job's model with Adagrad, its tables with row-wise Adagrad, and score it.

    All examples weigh the same. Raises ValueError for a job with other optimizers, with schedules, warm-up or
    bags.
    """
    _check(job)
    torch.set_num_threads(1)
    model, tables = build_model(job), [_Table(job, number) for number in range(len(job.tables))]
    optimizer = torch.optim.Adagrad(
        model.parameters(), lr=job.trainer.lr, weight_decay=job.trainer.weight_decay
    )
    source, scored = BatchSource(job), Scored(QualitySums(), QualitySums())
    while (batch := source.next()) is not None:
        vectors = [table.rows(ids).requires_grad_() for table, ids in zip(tables, batch.rows, strict=True)]
        logits = model(torch.from_numpy(batch.dense), vectors)
        if batch.id.epoch == 0 and batch.id.span in source.plan.progressive:
            scored.progressive.add(logits.detach().numpy(), batch.labels)
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for table, ids, vector in zip(tables, batch.rows, vectors, strict=True):
            assert vector.grad is not None
            table.step(ids, vector.grad)
    with torch.no_grad():
        for batch in source.scored(source.plan.test):
            vectors = [table.rows(ids) for table, ids in zip(tables, batch.rows, strict=True)]
            scored.test.add(model(torch.from_numpy(batch.dense), vectors).numpy(), batch.labels)
    return scored


def logistic_loop(job: Job, lr: float) -> Scored:
    """Train and score a logistic regression on the same columns, as the floor.

    Training is one pass with Adagrad.
    """
    torch.set_num_threads(1)
    weights = [torch.zeros(table.rows) for table in job.tables]
    dense = torch.zeros(job.model_inputs[0] + 1)
    sums = [torch.zeros_like(weight) for weight in (*weights, dense)]
    source, scored = BatchSource(job), Scored(QualitySums(), QualitySums())

    def logits_of(batch: Delivery) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        ones = torch.ones(len(batch.labels), 1)
        inputs = torch.cat([torch.from_numpy(batch.dense), ones], 1)
        ids = [torch.from_numpy(rows).long() for rows in batch.rows]
        logits = inputs @ dense
        for weight, rows in zip(weights, ids, strict=True):
            logits = logits + weight[rows]
        return logits, inputs, ids

    for batch in _one_pass(source):
        logits, inputs, ids = logits_of(batch)
        if batch.id.span in source.plan.progressive:
            scored.progressive.add(logits.numpy(), batch.labels)
        error = (torch.sigmoid(logits) - torch.from_numpy(batch.labels)) / len(batch.labels)
        gradients = [
            torch.zeros_like(weight).index_add_(0, rows, error)
            for weight, rows in zip(weights, ids, strict=True)
        ]
        gradients.append(inputs.T @ error)
        for weight, total, gradient in zip((*weights, dense), sums, gradients, strict=True):
            total.addcmul_(gradient, gradient)
            weight.addcdiv_(gradient, total.sqrt().add_(EPSILON), value=-lr)
    for batch in source.scored(source.plan.test):
        scored.test.add(logits_of(batch)[0].numpy(), batch.labels)
    return scored


class _Table:
    """One embedding table, under row-wise Adagrad."""

    def __init__(self, job: Job, number: int) -> None:
        settings = job.tables[number]
        generator = torch.Generator().manual_seed(1000 * job.run.seed + number)
        unit = torch.rand(settings.rows, settings.dim, generator=generator)
        self._values = (2 * unit - 1) * settings.init_scale
        self._sums = torch.zeros(settings.rows)
        self._lr = settings.lr

    def rows(self, ids: object) -> torch.Tensor:
        return self._values[torch.as_tensor(ids).long()]

    def step(self, ids: object, gradients: torch.Tensor) -> None:
        rows, inverse = torch.unique(torch.as_tensor(ids).long(), return_inverse=True)
        total = torch.zeros(len(rows), gradients.shape[1]).index_add_(0, inverse, gradients)
        self._sums[rows] += total.pow(2).mean(1)
        self._values[rows] -= self._lr * total / (self._sums[rows].sqrt() + EPSILON)[:, None]


def _one_pass(source: BatchSource) -> Iterator[Delivery]:
    while (batch := source.next()) is not None:
        if batch.id.epoch:
            return
        yield batch


def _check(job: Job) -> None:
    trainer, schedule = job.trainer, job.trainer.schedule
    plain = trainer.optimizer == "adagrad" and trainer.clip_norm is None and not job.rows_warmup_examples
    plain &= schedule.kind == "constant" and not schedule.warmup_examples
    plain &= all(t.optimizer == "rowwise_adagrad" and not t.pooling for t in job.tables)
    if not plain:
        raise ValueError("the plain loop has Adagrad, row-wise Adagrad, constant rates and one id a column")
