"""DIN against its equations in NumPy, float64, and which jobs it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.models.built_in.din import DIN
from shadowsync.pipeline.models.layers.sequences import EmbeddedSequence, Embeddings, ModelInput
from shadowsync.pipeline.models.registry import build_model
from shadowsync.pipeline.models.training.flat import BFloat16Weights, FlatLayout

INPUTS = [ModelInput("item", 4, None), ModelInput("history", 4, 6), ModelInput("user", 3, None)]
Arrays = NDArray[np.float64]


def make_din(**options: Any) -> DIN:
    torch.manual_seed(3)
    return DIN(2, [4, 4, 3], inputs=INPUTS, top=[5], attention={"history": "item"}, **options)


def inputs_of(batch: int, seed: int, lengths: list[int]) -> tuple[torch.Tensor, Embeddings]:
    torch.manual_seed(seed)
    counts = torch.tensor(lengths)
    history = torch.randn(batch, int(counts.max().clamp(min=1)), 4)
    places = torch.arange(history.shape[1]) < counts[:, None]
    sequence = EmbeddedSequence(history * places[..., None], counts)
    return torch.randn(batch, 2), [torch.randn(batch, 4), sequence, torch.randn(batch, 3)]


def prelu(x: Arrays, slope: Arrays) -> Arrays:
    return np.maximum(x, 0) + slope * np.minimum(x, 0)


def by_hand(model: DIN, dense: torch.Tensor, embeddings: Embeddings) -> Arrays:
    """Equation 3 and Figure 2, example by example and vector by vector."""
    w = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    item, sequence, user = embeddings
    assert isinstance(sequence, EmbeddedSequence)
    assert isinstance(item, torch.Tensor)
    assert isinstance(user, torch.Tensor)
    logits = []
    for at, length in enumerate(sequence.lengths.tolist()):
        v, others = item[at].double().numpy(), user[at].double().numpy()
        interest = np.zeros(4)
        for place in range(length):
            e = sequence.vectors[at, place].double().numpy()
            e = e + (w["places.1"][place] if "places.1" in w else 0.0)
            seen = np.concatenate([e, v, e - v, e * v])
            hidden = w["units.1.weight.0.weight"] @ seen + w["units.1.weight.0.bias"]
            hidden = prelu(hidden, w["units.1.weight.1.slope"])
            interest += (w["units.1.weight.2.weight"] @ hidden + w["units.1.weight.2.bias"])[0] * e
        x = np.concatenate([dense[at].double().numpy(), v, interest, others])
        x = prelu(w["top.0.weight"] @ x + w["top.0.bias"], w["top.1.slope"])
        logits.append((w["top.2.weight"] @ x + w["top.2.bias"])[0])
    return np.array(logits)


@pytest.mark.parametrize("positions", [False, True])
def test_logits_are_those_of_the_equations(positions: bool) -> None:
    model = make_din(positions=positions, unit=[7])
    if positions:
        assert model.places["1"].shape == (6, 4)
        assert not model.places["1"].any(), "at first it is as without positions"
        torch.nn.init.normal_(model.places["1"])
    dense, embeddings = inputs_of(5, 1, [3, 0, 5, 1, 2])
    wanted = by_hand(model, dense, embeddings)
    np.testing.assert_allclose(model(dense, embeddings).detach(), wanted, rtol=1e-4, atol=1e-5)
    sequence = embeddings[1]
    assert isinstance(sequence, EmbeddedSequence)
    flipped = EmbeddedSequence(sequence.vectors.flip(0), sequence.lengths.flip(0))
    other = model(dense, [embeddings[0], flipped, embeddings[2]]).detach().numpy()
    assert np.abs(other - wanted).max() > 1e-3, "the control: the history tells"


def test_an_empty_history_is_zero_and_places_behind_a_list_change_nothing() -> None:
    model = make_din(positions=True)
    torch.nn.init.normal_(model.places["1"])
    dense, embeddings = inputs_of(3, 2, [0, 2, 4])
    sequence = embeddings[1]
    assert isinstance(sequence, EmbeddedSequence)
    longer = torch.cat([sequence.vectors, torch.zeros(3, 2, 4)], dim=1)
    same = model(dense, [embeddings[0], EmbeddedSequence(longer, sequence.lengths), embeddings[2]])
    torch.testing.assert_close(same, model(dense, embeddings), rtol=1e-5, atol=1e-6)
    none = EmbeddedSequence(torch.zeros(3, 1, 4), torch.zeros(3, dtype=torch.int64))
    wanted = by_hand(model, dense, [embeddings[0], none, embeddings[2]])
    got = model(dense, [embeddings[0], none, embeddings[2]]).detach()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_differences() -> None:
    model = make_din(positions=True, unit=[7]).double()
    dense, embeddings = inputs_of(4, 5, [2, 0, 3, 1])
    item, sequence, user = embeddings
    assert isinstance(sequence, EmbeddedSequence)

    def logits(dense: Any, item: Any, history: Any, user: Any) -> Any:
        return model(dense, [item, EmbeddedSequence(history, sequence.lengths), user])

    assert isinstance(item, torch.Tensor)
    assert isinstance(user, torch.Tensor)
    given = [tensor.double().requires_grad_() for tensor in (dense, item, sequence.vectors, user)]
    assert torch.autograd.gradcheck(logits, tuple(given))
    logits(*given).sum().backward()
    assert given[2].grad is not None
    assert not given[2].grad[~sequence.mask()].any(), "no gradient behind a list"


def test_bfloat16_products_are_near() -> None:
    model = make_din()
    layout = FlatLayout(model)
    dense, embeddings = inputs_of(64, 6, [at % 5 for at in range(64)])
    wanted = model(dense, embeddings).detach()
    flat = layout.gather(model)
    rounded = BFloat16Weights(layout, model, flat, torch.zeros_like(flat))
    rounded.refresh()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = model(dense, embeddings)
    got.float().sum().backward()
    torch.testing.assert_close(got.float(), wanted, rtol=0.05, atol=0.05)


def job_of(**model: Any) -> Job:
    columns = {
        "y": "label",
        "item": "categorical",
        "history": {"kind": "multi_hot", "pooling": "none", "max_ids": 6},
        "tags": {"kind": "multi_hot", "pooling": "mean"},
        "age": "dense",
    }
    data = {"format": "csv", "path": ["x"], "columns": columns}
    settings = {"name": "din", "attention": {"history": "item"}, "top": [8]} | model
    return job_of_tree({"data": data, "model": settings})


def test_a_job_makes_it() -> None:
    model = build_model(job_of(options={"positions": True, "unit": [4, 3]}))
    assert isinstance(model, DIN)
    assert model.places["1"].shape == (6, 16)
    assert {name: tuple(p.shape) for name, p in model.named_parameters() if name.endswith("weight")} == {
        "units.1.weight.0.weight": (4, 64),
        "units.1.weight.2.weight": (3, 4),
        "units.1.weight.4.weight": (1, 3),
        "top.0.weight": (8, 1 + 3 * 16),
        "top.2.weight": (1, 8),
    }


@pytest.mark.parametrize("name", ["dlrm", "wide_deep", "dcn_v2", "deepfm", "autoint", "finalmlp", "ple"])
def test_other_models_refuse_a_sequence(name: str) -> None:
    with pytest.raises(JobFileError) as caught:
        build_model(job_of(name=name, attention={}))
    assert str(caught.value) == (
        f'data.columns.history.pooling: column history has pooling = "none", but {name} takes no sequences; '
        'set "sum" or "mean", or model.name = "din" or "sequence"; a class of your own says takes_sequences ='
        " True or takes_jagged = True"
    )


def test_a_class_of_ones_own_may_take_sequences(tmp_path: Any) -> None:
    file = tmp_path / "last.py"
    file.write_text(
        """
import torch

class Last(torch.nn.Module):
    takes_sequences = True

    def __init__(self, dense_features, embedding_dims, *, inputs):
        super().__init__()
        self.at = [entry.name for entry in inputs].index("history")
        assert inputs[self.at].longest == 6
        self.out = torch.nn.Linear(embedding_dims[self.at], 1)

    def forward(self, dense, embeddings):
        history = embeddings[self.at]
        assert history.mask().shape == history.vectors.shape[:2]
        last = (history.lengths - 1).clamp(min=0)
        return self.out(history.vectors[torch.arange(len(last)), last]).squeeze(1)
"""
    )
    assert type(build_model(job_of(name=f"{file}:Last", attention={}))).__name__ == "Last"


@pytest.mark.parametrize("unit", [[0], [2.5], ["wide"]])
def test_a_unit_without_widths(unit: Any) -> None:
    with pytest.raises(JobFileError, match=r"model: din cannot be made: ValueError: unit: .* as in \[36\]"):
        build_model(job_of(options={"unit": unit}))
