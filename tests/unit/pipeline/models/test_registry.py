"""Models by name, the user's own, and what is said of those that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.models.built_in.dlrm import DLRM
from shadowsync.pipeline.models.registry import build_model, find_model
from shadowsync.pipeline.models.training.flat import FlatLayout

MakeJob = Callable[..., Job]
WriteModule = Callable[[str], str]

LINEAR = """
import torch
from torch import nn

class Linear(nn.Module):
    def __init__(self, dense_features, embedding_dims, scale=1.0):
        super().__init__()
        self.scale = scale
        self.all = nn.Linear(dense_features + sum(embedding_dims), 1)

    def forward(self, dense, embeddings):
        return self.scale * self.all(torch.cat([dense, *embeddings], dim=1)).squeeze(1)

class Other:
    pass

def function(*args):
    return Linear(*args)
"""

UNFIT = """
import torch
from torch import nn

class Base(nn.Module):
    def __init__(self, dense_features, embedding_dims):
        super().__init__()
        self.w = nn.Linear(dense_features, 1)

class Column(Base):
    def forward(self, dense, embeddings):
        return self.w(dense)

class Nothing(Base):
    def forward(self, dense, embeddings):
        return None

class Double(Base):
    def forward(self, dense, embeddings):
        return self.w(dense).squeeze(1).double()

class Raises(Base):
    def forward(self, dense, embeddings):
        return {}["no key"]

class Broken(Base):
    def __init__(self, dense_features, embedding_dims):
        raise KeyError("no such\\nthing")

class Empty(nn.Module):
    def __init__(self, dense_features, embedding_dims):
        super().__init__()
    def forward(self, dense, embeddings):
        return dense.sum(dim=1)

class DoubleWeights(Base):
    def __init__(self, dense_features, embedding_dims):
        super().__init__(dense_features, embedding_dims)
        self.w = self.w.double()
    def forward(self, dense, embeddings):
        return self.w(dense.double()).squeeze(1).float()
"""


UNKNOWN = (
    "is not a known model; give one of autoint, dcn_v2, deepfm, din, dlrm, finalmlp, mmoe, ple, sequence, "
    "shared_bottom, two_tower, wide_deep, or your own as package.module:Class"
)


def _weights(module: torch.nn.Module) -> torch.Tensor:
    return FlatLayout(module).gather(module)


def _refusal(job: Job) -> str:
    with pytest.raises(JobFileError) as caught:
        build_model(job)
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_dlrm_has_the_sizes_of_the_job(make_job: MakeJob) -> None:
    model = build_model(make_job(bottom=[7, 6], top=[9]))
    assert isinstance(model, DLRM)
    shapes = [tuple(p.shape) for name, p in model.named_parameters() if name.endswith("weight")]
    assert shapes == [(7, 3), (6, 7), (2, 6), (9, 16), (1, 9)], (
        "the interaction's 2 + 5 * 4 / 2, and zeros up to a multiple of 8"
    )


def test_hidden_layers_of_built_in_models_are_normalized_and_dropped(make_job: MakeJob) -> None:
    """In dlrm two of `bottom`, its last one, and one of `top`; without either there are none."""
    model = build_model(make_job(bottom=[7, 6], top=[9], dropout=0.5, layer_norm=True))
    norms = [part.normalized_shape for part in model.modules() if isinstance(part, torch.nn.LayerNorm)]
    assert norms == [(7,), (6,), (2,), (9,)]
    assert sum(isinstance(part, torch.nn.Dropout) for part in model.modules()) == 4
    plain = build_model(make_job(bottom=[7, 6], top=[9]))
    assert not any(isinstance(part, torch.nn.LayerNorm | torch.nn.Dropout) for part in plain.modules())


def test_weights_are_of_the_seed_alone(make_job: MakeJob) -> None:
    torch.manual_seed(1234)
    first = _weights(build_model(make_job(seed=1)))
    torch.manual_seed(99)
    assert torch.equal(_weights(build_model(make_job(seed=1))), first)
    assert not torch.equal(_weights(build_model(make_job(seed=2))), first)


def test_building_leaves_the_callers_random_numbers(make_job: MakeJob) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build_model(make_job())
    assert torch.equal(torch.rand(4), expected)


def test_own_model(make_job: MakeJob, write_module: WriteModule) -> None:
    name = write_module(LINEAR) + ":Linear"
    model = build_model(make_job(name=name, options={"scale": 2.0}))
    assert type(model).__name__ == "Linear"
    assert [tuple(p.shape) for p in model.parameters()] == [(1, 3 + 4 * 2), (1,)]
    assert model.scale == 2.0
    plain = build_model(make_job(name=name))
    assert plain.scale == 1.0
    assert torch.equal(_weights(plain), _weights(model)), "seeded as ours is"
    assert find_model(name) is type(model)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dlmr", f"model.name: 'dlmr' {UNKNOWN}"),
        ("", f"model.name: '' {UNKNOWN}"),
        (
            "nowhere.at_all:Model",
            "model.name: 'nowhere.at_all:Model' cannot be imported (ModuleNotFoundError: No module named "
            "'nowhere'); install the package that holds it, or set PYTHONPATH to its folder",
        ),
        (":Model", "model.name: ':Model' cannot be imported (ValueError: Empty module name)"),
    ],
)
def test_unknown_name(make_job: MakeJob, name: str, said: str) -> None:
    assert _refusal(make_job(name=name)).startswith(said)


@pytest.mark.parametrize(
    ("text", "wanted", "said"),
    [
        (LINEAR, "Absent", "cannot be imported (AttributeError: module"),
        (LINEAR, "", "cannot be imported (AttributeError: module"),
        (LINEAR, "Other", "is not a subclass of torch.nn.Module"),
        (LINEAR, "function", "is not a subclass of torch.nn.Module"),
        ("this is no python", "Model", "cannot be imported (SyntaxError: invalid syntax"),
        ("1 / 0", "Model", "cannot be imported (ZeroDivisionError: division by zero)"),
    ],
)
def test_own_module_without_the_model(
    make_job: MakeJob, write_module: WriteModule, text: str, wanted: str, said: str
) -> None:
    name = f"{write_module(text)}:{wanted}"
    assert _refusal(make_job(name=name)).startswith(f"model.name: {name!r} {said}")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("Column", ".forward returned torch.float32 [2, 1] for a batch of 2; return float32 logits [B]"),
        ("Nothing", ".forward returned NoneType for a batch of 2; return float32 logits [B]"),
        ("Double", ".forward returned torch.float64 [2] for a batch of 2; return float32 logits [B]"),
        ("Raises", ".forward failed on a batch of 2 zeros: KeyError: 'no key'; forward(dense [B, D], "),
        ("Broken", " cannot be made: KeyError: 'no such\\nthing'"),
        ("Empty", " has no parameters"),
        ("DoubleWeights", ": the parameter w.weight is torch.float64; make it float32"),
    ],
)
def test_own_model_that_is_unfit(
    make_job: MakeJob, write_module: WriteModule, wanted: str, said: str
) -> None:
    assert f":{wanted}{said}" in _refusal(make_job(name=f"{write_module(UNFIT)}:{wanted}"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"depth": 3}, "model.options: dlrm cannot be made with (dense_features, embedding_dims, depth, "),
        ({"bottom": [3]}, "model.options.bottom: dlrm takes no such option; write model.bottom"),
        ({"top": [3]}, "model.options.top: dlrm takes no such option; write model.top"),
    ],
)
def test_options_of_dlrm(make_job: MakeJob, options: dict[str, Any], said: str) -> None:
    assert _refusal(make_job(options=options)).startswith(said)


def test_options_of_an_own_model(make_job: MakeJob, write_module: WriteModule) -> None:
    name = write_module(LINEAR) + ":Linear"
    assert _refusal(make_job(name=name, options={"scal": 1.0})) == (
        f"model.options: {name} cannot be made with (dense_features, embedding_dims, scal): "
        "got an unexpected keyword argument 'scal'"
    )


def test_dlrm_of_one_vector(make_job: MakeJob) -> None:
    said = _refusal(make_job(dense=0, tables=1))
    assert said.startswith("model: dlrm cannot be made: ValueError: dlrm multiplies pairs of vectors")
