"""Hard negatives in a worker's steps: what plain torch computes, captured, in parts, and in bfloat16."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker.captured_steps import EAGER_STEPS
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.pipeline.models.layers.dense import THIN_ELEMENTS
from shadowsync.pipeline.models.layers.sequences import EmbeddedSequence, JaggedSequence, with_lengths
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.messages import Delivery
from shadowsync.tests.support.tables.shared import build_shared
from shadowsync.tests.support.tables.steps import Drawn, answered, as_eagerly

BATCH, ROWS, COUNT, LONGEST, LR = 16, 13, 10, 5, 0.1
LISTS = {"kind": "multi_hot", "table": "item", "pooling": "none", "max_ids": LONGEST}
COLUMNS: dict[str, Any] = {
    "y": "label",
    "history": LISTS | {"keep": "last"},
    "skipped": LISTS,
    "user": "categorical",
    "item": "categorical",
}
MODELS: dict[str, dict[str, Any]] = {
    "two_tower": {"query": ["user"], "options": {"dim": 3, "temperature": 0.5}},
    "sequence": {"query": ["history", "user"], "options": {"temperature": 0.5}},
}
SKIPPED, ITEM = "skipped", "item"


def job_of(name: str, *, kind: str = "hashed", top: int = 5, **trainer: Any) -> Job:
    columns = dict(COLUMNS)
    if name == "two_tower":
        del columns["history"]
    tables = {column: {"kind": kind, "rows": ROWS} for column in ("item", "user")}
    settings = {
        "data": {"format": "csv", "path": ["x"], "columns": columns},
        "model": {"name": name, "embedding_dim": 3, "item": [ITEM], "negatives": SKIPPED, "top": [top]}
        | MODELS[name],
        "tables": tables,
        "embedding": {"nodes": 2},
        "trainer": {"precision": "float32", "optimizer": "sgd", "lr": LR, "exact_rows": False} | trainer,
    }
    return Job.model_validate(settings)


def drawn(shared: TrainerContext, number: int = 0) -> Drawn:
    """Many negatives are the query's own item, some are there twice, and some queries have none."""
    draw, job = np.random.default_rng(number), shared.job
    bags = [column.name for column in job.embedded_columns if column.pooling]
    lengths = draw.integers(0, LONGEST + 1, (len(bags), BATCH), dtype=np.int32)
    lengths[:, :2] = (0, LONGEST)
    rows = draw.integers(0, ROWS, (2, BATCH), dtype=np.int32)
    rows[1] = np.minimum(rows[1], draw.integers(0, ROWS, BATCH))
    bag_rows = draw.integers(0, ROWS, int(lengths.sum()), dtype=np.int32)
    if SKIPPED in bags:
        at = int(lengths[: bags.index(SKIPPED)].sum())
        for example, length in enumerate(lengths[bags.index(SKIPPED)].tolist()):
            if length and example % 3:
                bag_rows[at] = rows[1, example]
            at += length
    # Keys are as good as hashes, and each has its row.
    grows = any(column.grows for column in job.embedded_columns)
    delivery = Delivery(
        sequence=number,
        pass_number=0,
        id=BatchId(0, 0, number, 1),
        labels=(draw.random(BATCH) < 0.7).astype(np.float32),
        dense=np.zeros((BATCH, 0), np.float32),
        rows=rows,
        bag_rows=bag_rows if bags else np.zeros(0, np.int32),
        bag_lengths=lengths if bags else np.zeros((0, 0), np.int32),
        keys=_keys(rows) if grows else np.zeros((0, 0), np.uint64),
        bag_keys=_keys(bag_rows) if grows and bags else np.zeros(0, np.uint64),
    )
    return delivery, *answered(shared, delivery, draw, 0.5)


def _keys(rows: Any) -> Any:
    return rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)


def skipped_rows(job: Job, delivery: Delivery) -> list[Any]:
    """The rows of each example's negatives."""
    number = [column.name for column in job.embedded_columns if column.pooling].index(SKIPPED)
    lengths, at = delivery.bag_lengths[number], int(delivery.bag_lengths[:number].sum())
    return np.split(delivery.bag_rows[at : at + lengths.sum()], np.cumsum(lengths)[:-1])


def by_hand(
    shared: TrainerContext, batch: Drawn, module: Any, *, hits: bool, negatives: bool
) -> tuple[torch.Tensor, Any]:
    """The loss, score by score; and the embeddings, in which it has gradients."""
    delivery, requests, replies = batch
    whole = shared.router.assemble(requests, replies)
    names = [column.name for column in shared.job.embedded_columns]
    jagged = with_lengths(whole.embeddings, whole.lengths)
    inputs = [entry.padded(LONGEST) if isinstance(entry, JaggedSequence) else entry for entry in jagged]
    dense = torch.from_numpy(delivery.dense)
    queries = module.query_vectors(dense, inputs)
    items = module.item_vectors(dense, inputs)
    ids = delivery.rows[1]
    logs = torch.zeros(BATCH)
    if shared.item_frequency is not None:
        known = delivery.keys[1].view(np.int64) if len(delivery.keys) else ids.astype(np.int64)
        logs = torch.from_numpy(shared.item_frequency.log_share(known))
    lists = skipped_rows(shared.job, delivery)
    sequence = inputs[names.index(SKIPPED)]
    assert isinstance(sequence, EmbeddedSequence)
    total, weight = torch.zeros(()), 0.0
    for query in range(BATCH):
        if not delivery.labels[query]:
            continue
        terms = [
            queries[query] @ items[place] / 0.5 - logs[place]
            for place in range(BATCH)
            if place == query or ids[place] != ids[query]
        ]
        for place, skipped in enumerate(lists[query] if negatives else ()):
            if hits or skipped != ids[query]:
                one = list(inputs)
                one[names.index(ITEM)] = sequence.vectors[query, place][None]
                vector = module.item_vectors(dense[:0], one)[0]
                terms.append(queries[query] @ vector / 0.5 - logs[query])
        own = queries[query] @ items[query] / 0.5 - logs[query]
        total = total + torch.logsumexp(torch.stack(terms), 0) - own
        weight += 1.0
    return total / max(weight, 1.0), whole


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("kind", ["hashed", "growing"])
@pytest.mark.parametrize("name", list(MODELS))
def test_a_step_is_that_of_plain_torch(name: str, kind: str, on_device: bool) -> None:
    """With the controls: without negatives, and with the query's own item among them, it is another one."""
    shared = build_shared(job_of(name, kind=kind), on_device=on_device)
    batch, before = drawn(shared), shared.replica.flat.clone()
    _, gradients = Stepper(shared).train(*batch)
    after = shared.replica.flat.clone()
    for hits, negatives in ((False, True), (False, False), (True, True)):
        flat, module = before.clone(), copy.deepcopy(shared.template)
        slopes = torch.zeros_like(flat)
        shared.layout.attach(module, flat, slopes)
        loss, whole = by_hand(shared, batch, module, hits=hits, negatives=negatives)
        loss.backward()  # type: ignore[no-untyped-call]
        apart = max(
            float((before - LR * slopes - after).abs().max()),
            *(np.abs(a - b).max() for a, b in zip(whole.gradients(), gradients, strict=True)),
        )
        if negatives and not hits:
            assert apart < 1e-5
        else:
            assert apart > 1e-3, "the control"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["hashed", "growing"])
def test_a_captured_step_is_an_eager_one(kind: str, precision: str) -> None:
    def batches(shared: TrainerContext) -> list[Drawn]:
        made = [drawn(shared, number) for number in range(COUNT)]
        made[6] = (dataclasses.replace(made[6][0], replay=True), *made[6][1:])
        return made

    trained = as_eagerly(job_of("two_tower", kind=kind, precision=precision), batches)
    assert (trained.captured, trained.events) == (COUNT - EAGER_STEPS - 1, [])
    assert any(gradient.any() for gradients in trained.gradients for gradient in gradients)


@pytest.mark.parametrize("name", list(MODELS))
def test_a_step_in_bfloat16_is_near_one_in_float32(name: str) -> None:
    # Thin layers are float32 always.
    wide, rows = 1 + THIN_ELEMENTS // 3, []
    for precision in ("float32", "bfloat16"):
        shared = build_shared(job_of(name, top=wide, precision=precision))
        rows.append(np.concatenate(Stepper(shared).train(*drawn(shared))[1]))
    assert 0 < np.linalg.norm(rows[0] - rows[1]) < 0.05 * np.linalg.norm(rows[0])


@pytest.mark.parametrize("name", list(MODELS))
def test_scores_do_not_depend_on_them(name: str) -> None:
    shared = build_shared(job_of(name))
    stepper, (delivery, requests, replies) = Stepper(shared), drawn(shared)
    stepper.score_with(shared.replica.flat.clone())
    delivery = dataclasses.replace(delivery, pass_number=1)
    scores = []
    whole = shared.router.assemble(requests, replies)
    place = [column.name for column in shared.job.embedded_columns].index(SKIPPED)
    module: Any = copy.deepcopy(shared.template).eval()
    shared.layout.attach(module, shared.replica.flat.clone())
    inputs = with_lengths(whole.embeddings, whole.lengths)
    for scale in (1.0, 7.0):
        changed: list[Any] = list(inputs)
        first, lengths = changed[place]
        changed[place] = type(changed[place])(first * scale, lengths)
        with torch.no_grad():
            scores.append(module.scores(module(torch.from_numpy(delivery.dense), changed)))
    assert torch.equal(*scores)
    sums = PassSums()
    stepper.score(delivery, requests, replies, sums)
    assert sums.quality.examples == BATCH
