"""A plain torch loop in one process, with a job's model, settings and batches.

    from shadowsync.benchmarks.quality.data_sets.plain_loop import logistic_loop, plain_loop

No nodes, no replicas, no threads: `torch.optim.Adagrad`, tables as tensors, one batch after the other.
`plain_quality.py` compares jobs of one or more trainers with it.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from shadowsync.lab.virtual.source import BatchSource
from shadowsync.nodes.coordinator.input.label_rate import sampled_label_rates
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.embedding.storage.first_values import row_values
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.models.registry import build_model
from shadowsync.pipeline.models.training.optimizers import EMA_EVERY
from shadowsync.pipeline.types import Float32Array
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

    All first values are those of the job, and all examples weigh the same. If the job validates its epochs,
    the test is of the best one by NE, and its patience ends the training. Raises ValueError for a job with
    other optimizers, with schedules, warm-up or bags, or with other validations.
    """
    _check(job)
    torch.set_num_threads(1)
    loop = _Loop(job)
    source, best, progressive, epoch = loop.source, _Best(loop), QualitySums(), 0
    while (batch := source.next()) is not None:
        if batch.id.epoch > epoch:
            epoch = batch.id.epoch
            if best.is_final():
                return Scored(best.test, progressive)
        logits = loop.step(batch)
        if epoch == 0 and batch.id.span in source.plan.progressive:
            progressive.add(logits, batch.labels)
    best.is_final()
    return Scored(best.test, progressive)


def logistic_loop(job: Job, lr: float) -> Scored:
    """Train and score a logistic regression on the same columns, as the floor.

    Training is one pass with Adagrad.
    """
    torch.set_num_threads(1)
    weights = [torch.zeros(rows) for rows in job.column_rows]
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


class _Loop:
    """A job's model and tables, with their optimizers."""

    def __init__(self, job: Job) -> None:
        self.job, self.source = job, BatchSource(job)
        rates = sampled_label_rates(job, self.source.plan.train, seconds=None)
        self._model = build_model(job, rates)
        self._columns = job.embedded_columns
        self._tables = [_Table(job, number) for number in range(len(job.tables))]
        self._optimizer = torch.optim.Adagrad(
            self._model.parameters(), lr=job.trainer.lr, weight_decay=job.trainer.weight_decay
        )
        self._items = _InBatchSoftmax(job) if job.model.has_towers else None
        self._average = None if job.trainer.ema is None else _MovingAverage(self._model, job.trainer.ema)

    def step(self, batch: Delivery) -> Float32Array:
        """Train on a batch; return its logits of before, float32 [B]."""
        vectors = [vector.requires_grad_() for vector in self._vectors(batch)]
        outputs = self._model(torch.from_numpy(batch.dense), vectors)
        self._optimizer.zero_grad()
        labels = torch.from_numpy(batch.labels)
        if self._items is None:
            logits, loss = outputs, binary_cross_entropy_with_logits(outputs, labels)
        else:
            queries, items = outputs
            logits, loss = self._items.scores_and_loss(queries, items, self._ids(batch), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if self._average is not None:
            self._average.step()
        self._step_tables(batch, vectors)
        before: Float32Array = logits.detach().numpy()
        return before

    def quality(self, spans: Sequence[Span]) -> QualitySums:
        """Score spans."""
        sums = QualitySums()
        model = self._model if self._average is None else self._average.model()
        with torch.no_grad():
            for batch in self.source.scored(spans):
                logits = model(torch.from_numpy(batch.dense), self._vectors(batch))
                if self._items is not None:
                    logits = self._items.scores(*logits).diagonal()
                sums.add(logits.numpy(), batch.labels)
        return sums

    def _step_tables(self, batch: Delivery, vectors: Sequence[torch.Tensor]) -> None:
        """Step each table by the gradients of all its columns."""
        pairs = list(zip(self._ids(batch), vectors, strict=True))
        for number, table in enumerate(self._tables):
            own = [pair for column, pair in zip(self._columns, pairs, strict=True) if column.number == number]
            gradients = [vector.grad for _, vector in own if vector.grad is not None]
            table.step(np.concatenate([ids for ids, _ in own]), torch.cat(gradients))

    def _vectors(self, batch: Delivery) -> list[torch.Tensor]:
        columns = zip(self._columns, self._ids(batch), strict=True)
        return [self._tables[column.number].rows(ids) for column, ids in columns]

    def _ids(self, batch: Delivery) -> list[NDArray[Any]]:
        """Return each column's rows, or of a growing table the keys of its ids."""
        keys = iter(batch.keys)
        columns = zip(self._columns, batch.rows, strict=True)
        return [next(keys) if column.grows else rows for column, rows in columns]


class _InBatchSoftmax:
    """The loss of two towers, with the sampling frequencies of Yi et al. (RecSys 2019) counted by item."""

    def __init__(self, job: Job) -> None:
        options: dict[str, Any] = job.model.options
        self._temperature = options.get("temperature", 0.05)
        self._rate = options.get("frequency_rate", 0.01)
        self._column = [column.name for column in job.embedded_columns].index(job.model.item[0])
        self._examples = 0
        # Of each item: when it came last, and the mean of how many gaps.
        self._items: dict[int, tuple[int, float, int]] = {}

    def scores(self, queries: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Return the score of each query for each item, [B, B]."""
        scores: torch.Tensor = queries @ items.T / self._temperature
        return scores

    def scores_and_loss(
        self, queries: torch.Tensor, items: torch.Tensor, ids: list[NDArray[Any]], labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pairs' scores, [B], and the mean loss of the positives."""
        scores, of_item = self.scores(queries, items), ids[self._column]
        before = scores.diagonal()
        if self._rate:
            scores = scores + torch.tensor(self._gaps(of_item.tolist())).log()
        same = torch.from_numpy(of_item[:, None] == of_item)
        same.fill_diagonal_(False)
        each = torch.logsumexp(scores.masked_fill(same, -math.inf), dim=1) - scores.diagonal()
        return before, (each * labels).sum() / labels.sum().clamp(min=1)

    def _gaps(self, items: list[int]) -> list[float]:
        self._examples += len(items)
        for item, count in Counter(items).items():
            last, mean, of = self._items.get(item, (0, 0.0, 0))
            weight = max(count / (of + count), 1 - (1 - self._rate) ** count)
            mean += weight * ((self._examples - last) / count - mean)
            self._items[item] = self._examples, mean, min(of + count, round(1 / self._rate))
        return [self._items[item][1] for item in items]


class _MovingAverage:
    """A module's moving average, as sums with weights that fall by the rate with each batch."""

    def __init__(self, module: torch.nn.Module, rate: float) -> None:
        self._module, self._rate, self._batches = module, rate**EMA_EVERY, 0
        self._sums = [torch.zeros_like(value) for value in module.parameters()]
        self._weight = 0.0

    def step(self) -> None:
        self._batches += 1
        if self._batches % EMA_EVERY:
            return
        self._weight = self._rate * self._weight + 1.0
        for total, value in zip(self._sums, self._module.parameters(), strict=True):
            total.mul_(self._rate).add_(value.detach())

    def model(self) -> torch.nn.Module:
        averaged = copy.deepcopy(self._module)
        with torch.no_grad():
            for value, total in zip(averaged.parameters(), self._sums, strict=True):
                value.copy_(total / self._weight)
        return averaged


class _Best:
    """The test of the best epoch by validation.

    It is of the last epoch if the job validates none.
    """

    def __init__(self, loop: _Loop) -> None:
        self._loop, self._validation = loop, loop.job.validation
        self._best, self._without = math.inf, 0
        self.test = QualitySums()

    def is_final(self) -> bool:
        """Score the epoch that just ended; return whether training ends with it."""
        plan = self._loop.source.plan
        if not self._validation.every_epochs:
            self.test = self._loop.quality(plan.test)
            return False
        ne = self._loop.quality(plan.validation).ne
        self._without += 1
        if ne is not None and ne < self._best:
            self._best, self._without = ne, 0
            self.test = self._loop.quality(plan.test)
        return 0 < self._validation.patience <= self._without


class _Table:
    """One embedding table, under row-wise Adagrad.

    A growing one has a row for each id that came.
    """

    def __init__(self, job: Job, number: int) -> None:
        self._settings, self._number, self._seed = job.tables[number], number, job.run.seed
        self._row_of: dict[int, int] | None = None
        rows = self._settings.rows
        if self._settings.growth is not None:
            self._row_of, rows = {}, 0
        self._values = self._first_values(np.arange(rows, dtype=np.int64))
        self._sums = torch.zeros(rows)
        self._lr, self._decay = self._settings.lr, self._settings.weight_decay

    def rows(self, ids: NDArray[Any]) -> torch.Tensor:
        # First, since new ids make the values longer.
        places = self._places(ids)
        return self._values[places]

    def _first_values(self, ids: NDArray[Any]) -> torch.Tensor:
        of = self._settings
        return torch.from_numpy(row_values(self._seed, self._number, ids, of.dim, of.init_scale))

    def _places(self, ids: NDArray[Any]) -> torch.Tensor:
        if self._row_of is None:
            return torch.as_tensor(ids).long()
        new = [id_ for id_ in dict.fromkeys(ids.tolist()) if id_ not in self._row_of]
        if new:
            self._row_of |= {id_: len(self._row_of) + at for at, id_ in enumerate(new)}
            self._values = torch.cat([self._values, self._first_values(np.array(new, np.uint64))])
            self._sums = torch.cat([self._sums, torch.zeros(len(new))])
        return torch.tensor([self._row_of[id_] for id_ in ids.tolist()])

    def step(self, ids: NDArray[Any], gradients: torch.Tensor) -> None:
        rows, inverse = torch.unique(self._places(ids), return_inverse=True)
        total = torch.zeros(len(rows), gradients.shape[1]).index_add_(0, inverse, gradients)
        self._sums[rows] += total.pow(2).mean(1)
        step = total / (self._sums[rows].sqrt() + EPSILON)[:, None] + self._decay * self._values[rows]
        self._values[rows] -= self._lr * step


def _one_pass(source: BatchSource) -> Iterator[Delivery]:
    while (batch := source.next()) is not None:
        if batch.id.epoch:
            return
        yield batch


def _check(job: Job) -> None:
    trainer, schedule = job.trainer, job.trainer.schedule
    plain = trainer.optimizer == "adagrad" and trainer.clip_norm is None and not job.rows_warmup_examples
    plain &= schedule.kind == "constant" and not schedule.warmup_examples
    validation = job.validation
    plain &= not validation.every_examples and not validation.every_seconds and validation.every_epochs < 2
    plain &= validation.metric == ("ne" if job.model.has_logits else "auc") and not validation.min_delta
    plain &= all(table.optimizer == "rowwise_adagrad" for table in job.tables)
    plain &= not any(column.pooling for column in job.embedded_columns)
    if not plain:
        has = "Adagrad, row-wise Adagrad, constant rates, one id a column, and validation by the epoch"
        raise ValueError(f"the plain loop has {has}")
