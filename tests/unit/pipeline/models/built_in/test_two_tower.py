"""The in-batch softmax, and the towers of a job."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.batch import no_groups
from shadowsync.pipeline.data.batches.split_by_id import IdReader
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.models.built_in.two_tower import TwoTower, in_batch_softmax
from shadowsync.pipeline.models.layers.sequences import Embeddings
from shadowsync.pipeline.models.own.loss import LossBatch
from shadowsync.pipeline.models.registry import build_model
from shadowsync.pipeline.types import Int32Array, Uint64Array
from shadowsync.tests.support.tables.shared import build_shared

COLUMNS: dict[str, Any] = {
    "y": "label",
    "age": "dense",
    "price": "dense",
    "user": "categorical",
    "film": "categorical",
    "tags": "multi_hot",
}
TOWERS: dict[str, Any] = {"query": ["user", "age"], "item": ["film", "tags", "price"]}


def job_of(columns: dict[str, Any] | None = None, tables: dict[str, Any] | None = None, **model: Any) -> Job:
    return Job.model_validate(
        {
            "data": {"format": "parquet", "path": ["x"], "columns": columns or COLUMNS},
            "model": {"name": "two_tower", "embedding_dim": 4, "top": [8], **TOWERS} | model,
            "tables": tables or {},
        }
    )


def inputs_of(job: Job, examples: int, seed: int = 0) -> tuple[torch.Tensor, Embeddings]:
    generator = torch.Generator().manual_seed(seed)
    dense, dims = job.model_inputs
    vectors: Embeddings = [torch.randn(examples, dim, generator=generator) for dim in dims]
    return torch.randn(examples, dense, generator=generator), vectors


def two_tower(job: Job) -> TwoTower:
    model = build_model(job)
    assert isinstance(model, TwoTower)
    return model


def by_hand(
    scores: torch.Tensor, items: list[int], weights: list[float], log_frequency: list[float] | None
) -> float:
    """The loss term by term."""
    total = 0.0
    for row, item in enumerate(items):
        corrected = [float(score) for score in scores[row]]
        if log_frequency is not None:
            corrected = [score - log for score, log in zip(corrected, log_frequency, strict=True)]
        others = [math.exp(corrected[at]) for at, other in enumerate(items) if at == row or other != item]
        total -= weights[row] * (corrected[row] - math.log(sum(others)))
    return total / sum(weights)


ITEMS = [3, 4, 3, 5]
WEIGHTS = [1.0, 0.0, 2.0, 0.5]
LOGS = [math.log(share) for share in (0.5, 0.1, 0.5, 0.02)]


@pytest.mark.parametrize("log_frequency", [None, LOGS])
def test_the_loss_is_that_by_hand(log_frequency: list[float] | None) -> None:
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    logs = None if log_frequency is None else torch.tensor(log_frequency)
    loss = in_batch_softmax(scores, torch.tensor(ITEMS), torch.tensor(WEIGHTS), logs)
    assert float(loss) == pytest.approx(by_hand(scores, ITEMS, WEIGHTS, log_frequency), rel=1e-5)
    controls = (
        in_batch_softmax(scores, torch.arange(4), torch.tensor(WEIGHTS), logs),
        in_batch_softmax(scores, torch.tensor(ITEMS), torch.ones(4), logs),
        in_batch_softmax(
            scores, torch.tensor(ITEMS), torch.tensor(WEIGHTS), torch.tensor(LOGS) if logs is None else None
        ),
    )
    for control in controls:
        assert abs(float(control) - float(loss)) > 0.01


def test_a_batch_without_a_positive_has_no_loss_and_finite_gradients() -> None:
    scores = torch.randn(3, 3, requires_grad=True)
    loss = in_batch_softmax(scores, torch.tensor([1, 1, 1]), torch.zeros(3))
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0
    assert scores.grad is not None
    assert not scores.grad.any()


def test_a_label_of_0_is_no_positive_and_its_item_is_a_negative() -> None:
    job = job_of()
    model = two_tower(job)
    outputs = model(*inputs_of(job, 4))
    queries, items = outputs
    labels, weights = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([1.0, 3.0, 2.0, 0.5])
    batch = LossBatch(labels, weights, {}, torch.tensor(ITEMS), torch.tensor(LOGS))
    loss = float(model.loss(outputs, batch).detach())
    scores = (queries @ items.T / model.temperature).detach()
    assert loss == pytest.approx(by_hand(scores, ITEMS, [1.0, 0.0, 2.0, 0.5], LOGS), rel=1e-4)
    without = [0, 2, 3]
    kept = scores[without][:, without]
    alone = by_hand(kept, [3, 3, 5], [1.0, 2.0, 0.5], [LOGS[at] for at in without])
    assert abs(alone - loss) > 1e-3, "the control: the pair is left out whole"


def test_a_tower_sees_its_own_columns_only() -> None:
    job = job_of()
    model = two_tower(job).eval()
    dense, embeddings = inputs_of(job, 3)
    before = model(dense, embeddings)
    names = [column.name for column in job.embedded_columns]
    for name, changes in (("user", [True, False]), ("film", [False, True]), ("tags", [False, True])):
        place = names.index(name)
        changed = list(embeddings)
        changed[place] = cast(torch.Tensor, changed[place]) + 1.0
        after = model(dense, changed)
        assert [not torch.equal(one, other) for one, other in zip(before, after, strict=True)] == changes
    for place, changes in ((0, [True, False]), (1, [False, True])):
        moved = dense.clone()
        moved[:, place] += 1.0
        after = model(moved, embeddings)
        assert [not torch.equal(one, other) for one, other in zip(before, after, strict=True)] == changes


def test_a_score_is_the_product_of_the_vectors() -> None:
    job = job_of(options={"dim": 5, "temperature": 0.5})
    model = two_tower(job)
    inputs = inputs_of(job, 3)
    queries, items = model.query_vectors(*inputs), model.item_vectors(*inputs)
    assert queries.shape == items.shape == (3, 5)
    torch.testing.assert_close(queries.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(model.scores(model(*inputs)), torch.diag(queries @ items.T) / 0.5)
    free = two_tower(job_of(options={"normalized": False}))
    assert not torch.allclose(free.query_vectors(*inputs).norm(dim=1), torch.ones(3))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dim": 0}, "dim: 0 given; give the width of the vectors, 1 or more"),
        ({"dim": 2.5}, "dim: 2.5 given"),
        ({"temperature": 0}, "temperature: 0 given; give a number above 0"),
        ({"frequency_rate": 2}, "frequency_rate: 2 given; give a number from 0.0001 to 1, or 0"),
        ({"frequency_rate": 1e-5}, "frequency_rate: 1e-05 given"),
        ({"heads": 2}, "heads"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(JobFileError) as refused:
        build_model(job_of(options=options))
    assert why in str(refused.value)


class Ids(NamedTuple):
    """The ids of a batch."""

    rows: Int32Array
    keys: Uint64Array
    groups: Uint64Array = no_groups()


def test_items_are_told_apart_by_hash_or_row() -> None:
    """Among several columns, some with growing tables."""
    columns = {"y": "label", "a": "categorical", "b": "categorical", "c": "categorical", "d": "categorical"}
    rows = np.arange(8, dtype=np.int32).reshape(4, 2)
    keys = np.array([[1 << 63, 7], [5, 6]], np.uint64)
    hashed = {name: {"kind": "hashed", "rows": 10} for name in "ad"}

    def items_of(job: Job) -> list[int]:
        ids_of = IdReader(job.embedded_columns, job.model.item[0])
        found: list[int] = ids_of(Ids(rows, keys)).view(np.int64).tolist()
        return found

    towers: dict[str, Any] = {"query": ["a", "b"], "item": ["c", "d"]}
    assert items_of(job_of(columns, hashed, **towers)) == [5, 6]
    towers = {"query": ["a", "b"], "item": ["d", "c"]}
    assert items_of(job_of(columns, hashed, **towers)) == [6, 7]
    towers = {"query": ["a", "c"], "item": ["b", "d"]}
    assert items_of(job_of(columns, hashed, **towers)) == [-(1 << 63), 7]


def test_only_a_job_with_the_correction_keeps_frequencies() -> None:
    def context(**model: Any) -> TrainerContext:
        return build_shared(job_of(**model))

    assert context().item_frequency is not None
    assert context(options={"frequency_rate": 0}).item_frequency is None
    assert context(name="wide_deep", query=[], item=[]).item_frequency is None
