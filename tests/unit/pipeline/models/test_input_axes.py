"""A model's parameters in a model of other columns: what belongs to a column goes with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.models.input_axes import canonical_name, copy_matching, input_axes
from shadowsync.pipeline.models.layers.sequences import EmbeddedSequence, Embeddings
from shadowsync.pipeline.models.registry import build_model
from torch import nn

DIM, BATCH = 4, 16
OLD = ("a", "price", "b", "age")
NEW = ("new", "size", *reversed(OLD))
DENSE = {"price", "age", "size"}
ITEM = {"b", "size"}
MODELS: list[dict[str, Any]] = [
    {"name": "wide_deep", "top": [8]},
    {"name": "dcn_v2", "top": [8]},
    {"name": "dcn_v2", "top": [8], "options": {"rank": 2, "structure": "parallel"}},
    {"name": "dcn_v2", "top": [], "options": {"structure": "parallel"}},
    {"name": "dlrm", "bottom": [6], "top": [8]},
    {"name": "deepfm", "top": [8]},
    {"name": "autoint", "top": [8], "options": {"layers": 2, "head_dim": 3}},
    {"name": "finalmlp", "bottom": [6], "top": [8], "options": {"heads": 2}},
    {"name": "ple", "bottom": [6], "top": [8]},
    {"name": "mmoe", "bottom": [6], "top": [8], "options": {"experts": 2}},
    {"name": "shared_bottom", "bottom": [6], "top": [8]},
    {"name": "shared_bottom", "bottom": [], "top": [8]},
    {"name": "din", "top": [8], "options": {"positions": True}},
    {"name": "two_tower", "top": [8]},
    {"name": f"{__name__}:Own"},
    {"name": f"{__name__}:Own", "options": {"backwards": True}},
]


class Own(nn.Module):
    """Dense features before or behind the vectors, twice; and something beside them."""

    takes_sequences = True

    def __init__(
        self,
        dense_features: int,
        embedding_dims: list[int],
        *,
        inputs: object,  # noqa: ARG002 - given to models of sequences
        backwards: bool = False,
    ) -> None:
        super().__init__()
        self.backwards = backwards
        width = dense_features + sum(embedding_dims)
        self.below = nn.Linear(dense_features + width, 5)
        self.head = nn.Linear(5 + width, 1)

    def forward(self, dense: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:
        pooled = [one if isinstance(one, torch.Tensor) else one[0].sum(dim=1) for one in embeddings]
        parts = [*pooled, dense] if self.backwards else [dense, *pooled]
        x = torch.cat(parts, dim=1)
        found = torch.tanh(self.below(torch.cat([dense, x], dim=1)))
        logits: torch.Tensor = self.head(torch.cat([found, x], dim=1)).squeeze(1)
        return logits


def job_of(columns: tuple[str, ...], model: dict[str, Any]) -> Job:
    settings: dict[str, Any] = {"label": "label"}
    for name in columns:
        settings[name] = "dense" if name in DENSE else "categorical"
    model = {"embedding_dim": DIM, "table_rows": 10} | model
    if model["name"] == "din":
        settings["past"] = {"kind": "multi_hot", "pooling": "none", "max_ids": 3}
        model["attention"] = {"past": "a"}
    if model["name"] == "two_tower":
        towers = [[name for name in columns if (name in ITEM) == of_item] for of_item in (False, True)]
        model |= {"query": towers[0], "item": sorted(towers[1])}
    data = {"format": "csv", "path": ["x"], "columns": settings}
    data["columns"] = {name: {"kind": one} if isinstance(one, str) else one for name, one in settings.items()}
    return Job.model_validate({"data": data, "model": model})


def inputs(job: Job, values: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Embeddings]:
    dense = [values[name] for name in job.data.columns if name in DENSE]
    vectors: Embeddings = []
    for column in job.embedded_columns:
        given = values[column.name]
        if column.pooling == "none":
            vectors.append(EmbeddedSequence(given.view(BATCH, 1, DIM), torch.ones(BATCH, dtype=torch.int64)))
        else:
            vectors.append(given)
    return torch.stack(dense, dim=1), vectors


def outputs(module: nn.Module, dense: torch.Tensor, vectors: Embeddings) -> torch.Tensor:
    """What the module returns; the vectors of two towers behind each other."""
    found: torch.Tensor | tuple[torch.Tensor, ...] = module(dense, vectors)
    return found if isinstance(found, torch.Tensor) else torch.cat(found)


def transferred(old: Job, new: Job, *, by_columns: bool = True) -> tuple[nn.Module, nn.Module, set[str]]:
    """The old model, the new one with what it takes over, and the names of what it takes in part."""
    torch.manual_seed(5)
    first = build_model(old)
    for parameter in first.parameters():
        nn.init.uniform_(parameter)
    second = build_model(new)
    return first, second, take_over(first, old, second, new, by_columns=by_columns)


def take_over(
    first: nn.Module, old: Job, second: nn.Module, new: Job, *, by_columns: bool = True
) -> set[str]:
    """The second model takes over what it can; the names of what it takes in part."""
    saved = {name: value.detach().numpy().copy() for name, value in first.named_parameters()}
    names = {canonical_name(old, name): name for name in saved}
    axes = input_axes(new, dict(second.named_parameters())) if by_columns else {}
    saved_axes = input_axes(old, saved) if by_columns else {}
    partly = set()
    for name, parameter in second.named_parameters():
        was = names.get(canonical_name(new, name))
        if was is not None:
            copied, _ = copy_matching(parameter.data, saved[was], axes.get(name), saved_axes.get(was))
            if 0 < copied < parameter.numel():
                partly.add(name)
    return partly


@pytest.mark.parametrize(
    "model",
    [model for model in MODELS if model["name"] != "autoint"],
    ids=lambda model: f"{model['name'].rpartition(':')[2]}",
)
def test_with_new_columns_of_zeros_it_gives_the_old_logits(model: dict[str, Any]) -> None:
    """For others than DLRM and DCN, a new column without values adds nothing to what was learned."""
    old, new = job_of(OLD, model), job_of(NEW, model)
    torch.manual_seed(6)
    values = {name: torch.rand(BATCH) if name in DENSE else torch.rand(BATCH, DIM) for name in OLD}
    values["past"] = torch.rand(BATCH, DIM)
    more = values | {"new": torch.zeros(BATCH, DIM), "size": torch.zeros(BATCH)}
    first, second, partly = transferred(old, new)
    assert partly
    if model["name"] == "dcn_v2":
        # Its layers make something of a new column from the others: only what is new is cut off here.
        for name, parameter in second.named_parameters():
            keep = _of_old(new, name, parameter)
            parameter.data.mul_(keep)
        for name, parameter in second.named_parameters():
            assert parameter.data.count_nonzero() == dict(first.named_parameters())[name].count_nonzero()
    wanted, found = outputs(first, *inputs(old, values)), outputs(second, *inputs(new, more))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    _, without, _ = transferred(old, new, by_columns=False)
    assert (outputs(without, *inputs(new, more)) - wanted).abs().max() > 0.01, "the control: by place alone"


def test_autoint_takes_the_parts_of_each_field() -> None:
    """A new field takes attention from the others, so its logits are not the old ones."""
    model = next(model for model in MODELS if model["name"] == "autoint")
    old, new = job_of(OLD, model), job_of(NEW, model)
    first, second, partly = transferred(old, new)
    assert partly

    def by_field(job: Job, module: nn.Module) -> dict[str, torch.Tensor]:
        fields = [*job.data.dense_names, *(column.name for column in job.embedded_columns)]
        return dict(zip(fields, module.get_parameter("last.weight").view(len(fields), -1), strict=True))

    before, after = by_field(old, first), by_field(new, second)
    assert all(torch.equal(after[name], before[name]) for name in OLD)
    _, without, _ = transferred(old, new, by_columns=False)
    assert not torch.equal(by_field(new, without)["b"], before["b"]), "the control: by place alone"
    vectors = second.get_parameter("dense_vectors"), first.get_parameter("dense_vectors")
    places = [new.data.dense_names.index(name) for name in old.data.dense_names]
    assert torch.equal(vectors[0][places], vectors[1])


def _of_old(job: Job, name: str, parameter: torch.Tensor) -> torch.Tensor:
    keep = torch.ones_like(parameter)
    for at, axis in enumerate(input_axes(job, [name]).get(name, ())):
        for place, label in enumerate(axis or ()):
            if "new" in label or "size" in label:
                keep.select(at, place).zero_()
    return keep


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model['name'].rpartition(':')[2]}")
def test_columns_in_another_order_change_nothing(model: dict[str, Any]) -> None:
    old, new = job_of(OLD, model), job_of(tuple(reversed(OLD)), model)
    torch.manual_seed(6)
    values = {name: torch.rand(BATCH) if name in DENSE else torch.rand(BATCH, DIM) for name in OLD}
    values["past"] = torch.rand(BATCH, DIM)
    first, second, partly = transferred(old, new)
    assert not partly
    wanted = outputs(first, *inputs(old, values))
    torch.testing.assert_close(outputs(second, *inputs(new, values)), wanted, rtol=1e-4, atol=1e-5)
    _, without, _ = transferred(old, new, by_columns=False)
    assert (outputs(without, *inputs(new, values)) - wanted).abs().max() > 0.01, "the control: by place alone"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model['name'].rpartition(':')[2]}")
def test_there_and_back_again_nothing_is_lost(model: dict[str, Any]) -> None:
    """Columns that are gone take their part along."""
    old, new = job_of(OLD, model), job_of(NEW, model)
    first, second, _ = transferred(old, new)
    again = build_model(old)
    assert not take_over(second, new, again, old)
    for (name, value), own in zip(first.named_parameters(), again.parameters(), strict=True):
        assert value.equal(own), name


class Failing(Own):
    """Made for two columns of numbers only."""

    def __init__(self, dense_features: int, embedding_dims: list[int], *, inputs: object) -> None:
        if dense_features != 2:
            raise ValueError("two numbers are expected")
        super().__init__(dense_features, embedding_dims, inputs=inputs)


def test_a_model_that_cannot_be_made_has_no_axes() -> None:
    model = {"name": f"{__name__}:Failing"}
    assert input_axes(job_of(OLD, model), [])
    assert not input_axes(job_of(NEW, model), [])
