"""Steps of a model that takes jagged sequences beside those of the same model on padded ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker.captured_steps import EAGER, EAGER_STEPS
from shadowsync.nodes.worker.step import JAGGED_SIZES, Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.pipeline.models.layers.sequences import EmbeddedSequence, Embeddings, JaggedSequence
from shadowsync.pipeline.models.state_check import check_stateless
from shadowsync.pipeline.types import BatchId, Float32Array
from shadowsync.pipeline.wire.messages import Delivery
from shadowsync.tests.support.tables.shared import build_shared
from torch import nn

BATCH, ROWS, LONGEST, LR = 12, 30, 9, 0.05
COLUMNS = {
    "y": "label",
    "item": "categorical",
    "history": {"kind": "multi_hot", "pooling": "none", "max_ids": LONGEST},
    "seen": {"kind": "multi_hot", "pooling": "none", "max_ids": LONGEST},
    "price": "dense",
}


class Padded(nn.Module):
    """Gated sums of two lists, of which the place in the list has a weight."""

    takes_sequences = True

    def __init__(
        self,
        dense_features: int,
        embedding_dims: list[int],
        *,
        inputs: object,  # noqa: ARG002 - given to models of sequences
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(embedding_dims[0], embedding_dims[0])
        self.of_place = nn.Parameter(torch.linspace(-1, 1, LONGEST))
        self.head = nn.Linear(dense_features + sum(embedding_dims), 1)

    def forward(self, dense: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:
        parts = [one if isinstance(one, torch.Tensor) else self.pooled(one) for one in embeddings]
        logits: torch.Tensor = self.head(torch.cat([dense, *parts], dim=1)).squeeze(1)
        return logits

    def pooled(self, of: EmbeddedSequence | JaggedSequence) -> torch.Tensor:
        assert isinstance(of, EmbeddedSequence)
        gated = torch.tanh(self.gate(of.vectors)) * self.of_place[: of.vectors.shape[1], None]
        return (gated * of.mask()[..., None]).sum(dim=1)


class Jagged(Padded):
    takes_sequences = False
    takes_jagged = True

    def pooled(self, of: EmbeddedSequence | JaggedSequence) -> torch.Tensor:
        assert isinstance(of, JaggedSequence)
        assert len(of.values) == int(of.lengths.sum())
        gated = torch.tanh(self.gate(of.values)) * self.of_place[of.places()][:, None]
        return JaggedSequence(gated, of.lengths).sum()


class Misplaced(Jagged):
    """The control: a list begins one vector late."""

    def pooled(self, of: EmbeddedSequence | JaggedSequence) -> torch.Tensor:
        assert isinstance(of, JaggedSequence)
        return super().pooled(JaggedSequence(of.values.roll(1, 0), of.lengths))


def context(model: type[nn.Module], on_device: bool = False, **trainer: object) -> TrainerContext:
    settings = {
        "data": {"format": "csv", "path": ["x"], "columns": COLUMNS},
        "model": {"name": f"{__name__}:{model.__name__}", "embedding_dim": 3, "table_rows": ROWS},
        "embedding": {"nodes": 2},
        "trainer": {"precision": "float32", "optimizer": "sgd", "lr": LR} | trainer,
    }
    return build_shared(Job.model_validate(settings), on_device=on_device)


def delivery_of(number: int, *, empty: bool = False) -> Delivery:
    draw = np.random.default_rng(number)
    lengths = draw.integers(0, LONGEST + 1, (2, BATCH), dtype=np.int32) * (not empty)
    if not empty:
        lengths[0, :2], lengths[1, -1] = (0, LONGEST), 0
    return Delivery(
        sequence=number,
        pass_number=0,
        id=BatchId(0, 0, number, 1),
        labels=(draw.random(BATCH) < 0.4).astype(np.float32),
        dense=draw.normal(0, 1, (BATCH, 1)).astype(np.float32),
        rows=draw.integers(0, ROWS, (1, BATCH), dtype=np.int32),
        bag_rows=draw.integers(0, ROWS, int(lengths.sum()), dtype=np.int32),
        bag_lengths=lengths,
    )


Trained = tuple[list[float], list[Float32Array], torch.Tensor, float]


def trained(shared: TrainerContext, deliveries: list[Delivery], events: list[str]) -> Trained:
    """Losses, gradients of rows and dense weights after these batches, and the loss of the last's scores.

    Replies come from a table that the batches do not change.
    """
    stepper = Stepper(shared, events.append)
    tables = np.random.default_rng(0).normal(0, 1.5, (8, ROWS, 3)).astype(np.float32)
    losses, gradients = [], []
    for delivery in deliveries:
        requests = shared.router.requests_of(delivery)
        replies = [
            np.concatenate([tables[request.node][request.rows % ROWS].ravel()])[: request.floats]
            for request in requests
        ]
        step = stepper.stage(delivery, requests, replies)
        stepper.launch(step)
        loss, of_rows = stepper.finish(step)
        assert not step.left_out
        losses.append(loss)
        gradients += [of_node.copy() for of_node in of_rows]
    sums = PassSums()
    stepper.score_with(shared.replica.flat.clone())
    stepper.score(deliveries[-1], requests, replies, sums)
    return losses, gradients, shared.replica.flat.clone(), sums.quality.logloss


def apart(first: Trained, second: Trained) -> float:
    """The largest difference of any number of two."""
    numbers = [np.abs(np.array(first[0]) - np.array(second[0])).max(), abs(first[3] - second[3])]
    numbers += [np.abs(one - other).max(initial=0) for one, other in zip(first[1], second[1], strict=True)]
    return float(max(*numbers, (first[2] - second[2]).abs().max()))


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_steps_are_those_of_padded_lists(on_device: bool, distinct: bool) -> None:
    deliveries = [delivery_of(1), delivery_of(2), delivery_of(3, empty=True), delivery_of(4)]
    found: dict[type[nn.Module], Trained] = {}
    for model in (Padded, Jagged, Misplaced):
        shared = context(model, on_device, distinct_rows=distinct)
        found[model] = trained(shared, deliveries, [])
    assert np.abs(found[Padded][1][0]).max() > 1e-3
    assert apart(found[Jagged], found[Padded]) < 1e-6
    assert apart(found[Misplaced], found[Padded]) > 1e-3, "the control"


def test_in_bfloat16_they_are_nearly_those_of_float32() -> None:
    deliveries = [delivery_of(number) for number in (1, 2)]
    exact, rounded = (
        trained(context(Jagged, precision=precision), deliveries, []) for precision in ("float32", "bfloat16")
    )
    assert 1e-7 < apart(rounded, exact) < 0.05


class Beside(Jagged):
    """Takes off the mean of all lists of the batch."""

    def pooled(self, of: EmbeddedSequence | JaggedSequence) -> torch.Tensor:
        assert isinstance(of, JaggedSequence)
        return super().pooled(JaggedSequence(of.values - of.values.mean(dim=0), of.lengths))


def test_a_list_is_not_told_by_others() -> None:
    shared = context(Jagged)
    check_stateless(shared.job, shared.template)
    shared = context(Beside)
    with pytest.raises(JobFileError, match="Beside: forward scores an example by what others are beside it"):
        check_stateless(shared.job, shared.template)


@pytest.mark.parametrize("model", [Padded, Jagged])
def test_on_a_device_steps_of_jagged_lists_are_eager(model: type[nn.Module]) -> None:
    events: list[str] = []
    shared = context(model, on_device=True)
    deliveries = [delivery_of(1)] * (EAGER_STEPS + 2)
    trained(shared, deliveries, events)
    assert events == ([f"{EAGER}{JAGGED_SIZES}"] if model is Jagged else [])


def test_helpers_of_jagged_lists() -> None:
    values: Any = torch.arange(12, dtype=torch.float32).view(6, 2).requires_grad_()
    lists = JaggedSequence(values, torch.tensor([2, 0, 3, 1]))
    assert lists.offsets().tolist() == [0, 2, 2, 5, 6]
    assert lists.owners().tolist() == [0, 0, 2, 2, 2, 3]
    assert lists.places().tolist() == [0, 1, 0, 1, 2, 0]
    assert lists.sum().tolist() == [[2, 4], [0, 0], [18, 21], [10, 11]]
    assert lists.mean().tolist() == [[1, 2], [0, 0], [6, 7], [10, 11]]
    padded = lists.padded()
    assert padded.vectors.shape == (4, 3, 2)
    assert torch.equal(padded.vectors[padded.mask()], values)
    assert not padded.vectors[~padded.mask()].any()
    assert lists.padded(5).vectors.shape == (4, 5, 2)
    with pytest.raises(ValueError, match="longest: 2 given; a list has 3 vectors"):
        lists.padded(2)
    padded.vectors.square().sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(values.grad, 2 * values.detach())
    assert [own.tolist() for own in lists.nested().unbind()] == [
        own.tolist() for own in torch.split(values, [2, 0, 3, 1])
    ]
    empty = JaggedSequence(torch.zeros(0, 2), torch.zeros(3, dtype=torch.int64))
    assert empty.padded().vectors.shape == (3, 1, 2)
    assert empty.mean().tolist() == [[0, 0]] * 3
