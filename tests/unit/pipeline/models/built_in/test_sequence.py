"""The model `sequence` against a plain transformer, list by list; and which jobs it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.ineffective import ineffective_keys
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.models.built_in.sequence import SequenceModel
from shadowsync.pipeline.models.layers.attention import SHORT, ListBlocks
from shadowsync.pipeline.models.layers.sequences import EmbeddedSequence, Embeddings, JaggedSequence
from shadowsync.pipeline.models.own.loss import LossBatch, scoring
from shadowsync.pipeline.models.precision import DenseScorer, Precision
from shadowsync.pipeline.models.registry import build_model
from torch.nn.functional import layer_norm, normalize

DIM, LONGEST = 8, 40
LENGTHS = torch.tensor([3, 0, LONGEST, 17, 1, 33, SHORT, 12, 17])
HISTORY = {"kind": "multi_hot", "table": "item", "pooling": "none", "max_ids": LONGEST, "keep": "last"}
COLUMNS: dict[str, Any] = {"y": "label", "item": "categorical", "history": HISTORY}
OTHERS: dict[str, Any] = {"age": "dense", "city": "categorical"}


def job_of(columns: dict[str, Any] | None = None, **model: Any) -> Job:
    settings = {"name": "sequence", "query": ["history"], "item": ["item"], "embedding_dim": DIM}
    data = {"format": "csv", "path": ["x"], "columns": COLUMNS | (columns or {})}
    return job_of_tree({"data": data, "model": settings | model})


def made(keep: str = "last", *, others: bool = False, **model: Any) -> SequenceModel:
    """With weights that are not near those of no layer at all."""
    columns = {"history": HISTORY | {"keep": keep}} | (OTHERS if others else {})
    query = {"query": ["history", *OTHERS], "top": [5]} if others else {}
    module = build_model(job_of(columns, **(query | {"options": {"heads": 2}} | model)))
    assert isinstance(module, SequenceModel)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    return module.eval()


def jagged(seed: int = 1, lengths: torch.Tensor = LENGTHS) -> JaggedSequence:
    generator = torch.Generator().manual_seed(seed)
    return JaggedSequence(torch.randn(int(lengths.sum()), DIM, generator=generator), lengths)


def inputs_of(history: EmbeddedSequence | JaggedSequence, *, others: bool = False) -> Any:
    generator = torch.Generator().manual_seed(9)
    batch = len(history.lengths)
    item, city = torch.randn(2, batch, DIM, generator=generator)
    dense = torch.randn(batch, 1 if others else 0, generator=generator)
    embeddings: Embeddings = [item, history, *([city] if others else [])]
    return dense, embeddings


def plain(module: SequenceModel, vectors: torch.Tensor, keep: str) -> torch.Tensor:
    """The outputs for one list, [L, K] in its order, with the whole matrix of each head's attention."""
    w, length = dict(module.named_parameters()), len(vectors)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return layer_norm(x, (DIM,), w[f"query.{name}.weight"], w[f"query.{name}.bias"])

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ w[f"query.{name}.weight"].T + w[f"query.{name}.bias"]

    x = (vectors if keep == "last" else vectors.flip(0)) + w["query.places"][:length].flip(0)
    later = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
    for number in range(len(module.query.blocks)):  # type: ignore[arg-type]
        of = f"blocks.{number}"
        projected = linear(norm(x, f"{of}.attention_norm"), f"{of}.projection")
        heads = []
        for head in range(2):
            q, k, v = (
                projected[:, at * DIM + head * DIM // 2 : at * DIM + (head + 1) * DIM // 2] for at in range(3)
            )
            scores = (q @ k.T / (DIM // 2) ** 0.5).masked_fill(later, float("-inf"))
            heads.append(torch.softmax(scores, dim=1) @ v)
        x = x + linear(torch.cat(heads, dim=1), f"{of}.joined")
        hidden = torch.relu(linear(norm(x, f"{of}.mlp_norm"), f"{of}.mlp.0"))
        x = x + linear(hidden, f"{of}.mlp.2")
    x = norm(x, "last_norm")
    return x if keep == "last" else x.flip(0)


@pytest.mark.parametrize("keep", ["first", "last"])
def test_outputs_are_those_of_a_plain_transformer(keep: str) -> None:
    module, history = made(keep), jagged()
    wanted = torch.cat([plain(module, own, keep) for own in torch.split(history.values, LENGTHS.tolist())])
    padded = history.padded()
    for got in (module.query.encode(history), module.query.encode(padded)[padded.mask()]):  # type: ignore[operator]
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    other = made("last" if keep == "first" else "first")
    assert (other.query.encode(history) - wanted).abs().max() > 0.1, "the control"  # type: ignore[operator]


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("keep", ["first", "last"])
def test_loss_and_gradients_are_those_of_plain_torch(keep: str, others: bool) -> None:
    """Of jagged and of padded lists."""
    module, history = made(keep, others=others), jagged()
    dense, embeddings = inputs_of(history, others=others)
    batch = LossBatch(torch.ones(len(LENGTHS)), None, {}, torch.arange(len(LENGTHS)))

    def slopes(found: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        return list(torch.autograd.grad(found, [*module.parameters(), *leaves]))

    values = history.values.clone().requires_grad_()
    lists = torch.split(values, LENGTHS.tolist())
    last = [
        plain(module, own, keep)[-1 if keep == "last" else 0] if len(own) else module.query.empty
        for own in lists
    ]
    vectors = torch.stack(last)  # type: ignore[arg-type]
    if others:
        vectors = module.query.top(torch.cat([vectors, dense, embeddings[2]], dim=1))  # type: ignore[operator]
    scores = normalize(vectors, dim=1) @ normalize(embeddings[0], dim=1).T / 0.05
    wanted_loss = -torch.log_softmax(scores, dim=1).diagonal().mean()
    wanted = slopes(wanted_loss, [values])
    flat = history.values.clone().requires_grad_()
    padded = JaggedSequence(flat, LENGTHS).padded()
    for given in (JaggedSequence(flat, LENGTHS), padded):
        embeddings[1] = given
        outputs = module(dense, embeddings)
        loss = module.loss(outputs, batch)
        torch.testing.assert_close(loss, wanted_loss, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(module.scores(outputs), scores.diagonal(), rtol=1e-5, atol=1e-5)
        for one, other in zip(slopes(loss, [flat]), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert min(float(slope.abs().max()) for slope in wanted) > 1e-6, "the control: each has a gradient"


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_later_item_changes_no_earlier_output(keep: str, padded: bool) -> None:
    module, history = made(keep), jagged()
    begin, length, changed = int(LENGTHS[:2].sum()), LONGEST, 25
    other = history.values.clone()
    # Not a constant, which LayerNorm takes off again.
    other[begin + changed, 0] += 1.0
    outputs = []
    for values in (history.values, other):
        own = JaggedSequence(values, LENGTHS)
        given = own.padded() if padded else own
        found = module.query.encode(given)  # type: ignore[operator]
        outputs.append(found[given.mask()] if isinstance(given, EmbeddedSequence) else found)
    moved = (outputs[0] - outputs[1]).abs().amax(dim=1) > 1e-6
    places = torch.arange(length)
    sees = places >= changed if keep == "last" else places <= changed
    assert moved[begin : begin + length].tolist() == sees.tolist(), "the control: it changes all later ones"
    assert not moved[:begin].any()
    assert not moved[begin + length :].any()


def test_empty_histories() -> None:
    module = made()
    none = torch.zeros(3, dtype=torch.int64)
    for history in (jagged(lengths=none), jagged(lengths=none).padded()):
        dense, embeddings = inputs_of(history)
        queries = module.query_vectors(dense, embeddings)
        torch.testing.assert_close(queries, normalize(module.query.empty, dim=0).expand(3, -1))  # type: ignore[arg-type]
    queries.sum().backward()  # type: ignore[no-untyped-call]
    assert module.query.empty.grad.abs().max() > 0  # type: ignore[union-attr, operator]


def test_an_items_vector_is_its_row() -> None:
    dense, embeddings = inputs_of(jagged())
    item = embeddings[0]
    torch.testing.assert_close(made().item_vectors(dense, embeddings), normalize(item, dim=1))
    plainly = made(options={"heads": 2, "normalized": False})
    assert torch.equal(plainly.item_vectors(dense, embeddings), item)


def test_blocks_are_mostly_vectors() -> None:
    """Each vector is in one block, by time, and less than half of a block of longer lists is padding."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.exp(torch.rand(300, generator=generator) * 7.6).long() - 1
    for latest_first in (False, True):
        found = ListBlocks.of(lengths, latest_first=latest_first)
        assert found.order.sort().values.tolist() == list(range(int(lengths.sum())))
        assert sum(block.vectors for block in found.blocks) == len(found.order)
        history = JaggedSequence(torch.zeros(len(found.order), 1), lengths)
        place = history.places()[found.order]
        back = history.lengths[history.owners()[found.order]] - 1 - place
        assert torch.equal(found.ages, place if latest_first else back)
        filled = lengths > 0
        assert not found.ages[found.last[filled]].any()
        assert torch.equal(history.owners()[found.order[found.last[filled]]], filled.nonzero().squeeze(1))
        for block in found.blocks:
            assert block.longest <= SHORT or 2 * block.vectors > block.lists * block.longest
    assert len(found.blocks) == 8
    assert int(lengths.max()) * len(lengths) > 4 * len(found.order), "the control: padding would be most"


def test_dropout_is_in_training_alone() -> None:
    module = made(dropout=0.5)
    dense, embeddings = inputs_of(jagged())
    first, again = (module.query_vectors(dense, embeddings) for _ in range(2))
    assert torch.equal(first, again)
    module.train()
    dropped = [module.query_vectors(dense, embeddings) for _ in range(2)]
    assert (dropped[0] - dropped[1]).abs().max() > 0.1
    assert torch.equal(*(made().train().query_vectors(dense, embeddings) for _ in range(2))), "the control"


def test_scores_with_products_in_bfloat16_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    module, job = made(), job_of(options={"heads": 2})
    dense, embeddings = inputs_of(jagged())
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    exact, rounded = (
        DenseScorer(scoring(job, module), job, precision).logits(dense, embeddings)
        for precision in precisions
    )
    assert 1e-4 < (exact - rounded).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize(
    ("columns", "model", "words"),
    [
        (
            {"history": HISTORY | {"pooling": "mean"}},
            {},
            'model.query: 0 columns have pooling = "none" (none); sequence has one history: give one'
            ' multi_hot column this pooling, others "sum" or "mean"',
        ),
        (
            {"seen": HISTORY},
            {"query": ["history", "seen"]},
            'model.query: 2 columns have pooling = "none" (history, seen)',
        ),
        (
            {"history": {key: value for key, value in HISTORY.items() if key != "table"}},
            {},
            "data.columns.history.table: history has the table history, and the item item the table item; a"
            ' history is of items: set table = "item"',
        ),
        (
            {"history": HISTORY | {"keep": None}},
            {},
            "data.columns.history.keep: not given; sequence must know which end of a list is the recent one:"
            ' "first" if lists begin with the most recent id, "last" if they end with it',
        ),
        (
            OTHERS,
            {"item": ["item", "city"], "query": ["history", "age"]},
            "model.item: item, city given; the item of sequence is its row alone: give item, or set"
            ' model.name = "two_tower"',
        ),
        (
            {},
            {"query": ["item"], "item": ["history"]},
            "model.item: 'history' is the first column, and no column of one id with a table",
        ),
        ({}, {"query": ["history", "nothing"]}, "model.query: 'nothing' is no column that a model sees"),
        (
            {"item": {"kind": "categorical", "keep": "last"}},
            {},
            'data.columns.item.keep: given; it is for kind "multi_hot", this is "categorical"',
        ),
    ],
)
def test_jobs_that_are_refused(columns: dict[str, Any], model: dict[str, Any], words: str) -> None:
    with pytest.raises(JobFileError) as caught:
        job_of(columns, **model)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"options": {"heads": 3}}, "heads: 3 given; give a divisor of the 8 floats of a row"),
        ({"options": {"blocks": 0}}, "blocks: 0 given; give their number, 1 or more"),
        ({"options": {"temperature": 0}}, "temperature: 0 given; give a number above 0"),
        ({"options": {"dropout": 0.1}}, "sequence takes no such option; write model.dropout"),
        ({"options": {"dim": 8}}, "sequence cannot be made with"),
    ],
)
def test_options_that_are_refused(model: dict[str, Any], words: str) -> None:
    with pytest.raises(JobFileError) as caught:
        build_model(job_of(**model))
    assert words in str(caught.value)


def test_top_is_for_columns_beside_the_history() -> None:
    (found,) = ineffective_keys(job_of(top=[5]))
    assert found.key == "model.top"
    assert "there are none" in found.reason
    assert ineffective_keys(job_of(OTHERS, query=["history", *OTHERS], top=[5])) == []
