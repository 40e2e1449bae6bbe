"""The first value of the output bias: the label rate, a number, or what was drawn."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.models.registry import build_model
from shadowsync.pipeline.models.training.flat import FlatLayout

MakeJob = Callable[..., Job]
WriteModule = Callable[[str], str]
BUILT_IN = [
    {"name": "dlrm"},
    {"name": "wide_deep"},
    {"name": "dcn_v2"},
    {"name": "dcn_v2", "options": {"structure": "parallel"}},
    {"name": "deepfm"},
    {"name": "finalmlp"},
    {"name": "ple"},
]

OWN = """
from torch import nn

class Without(nn.Module):
    def __init__(self, dense_features, embedding_dims):
        super().__init__()
        self.last = nn.Linear(dense_features, 1)
    def forward(self, dense, embeddings):
        return self.last(dense).squeeze(1)

class With(Without):
    def set_output_bias(self, logit):
        self.last.bias.data.fill_(logit)

class Fails(Without):
    def set_output_bias(self, logit):
        raise KeyError("bias")
"""


def _flat(module: torch.nn.Module) -> torch.Tensor:
    return FlatLayout(module).gather(module)


def _without_inputs(module: torch.nn.Module) -> float:
    """The logit where all other weights are 0."""
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1 or "cross" in name:
            parameter.data.zero_()
    with torch.no_grad():
        return float(module(torch.ones(1, 3), [torch.zeros(1, 2) for _ in range(4)])[0])


@pytest.mark.parametrize("model", BUILT_IN)
def test_a_built_in_model_starts_at_the_log_odds(make_job: MakeJob, model: dict[str, object]) -> None:
    module = build_model(make_job(**model), (0.002,))
    drawn = build_model(make_job(**model, output_bias="drawn"), (0.002,))
    changed = (_flat(module) != _flat(drawn)).sum()
    assert changed == (2 if model["name"] in ("wide_deep", "deepfm") else 1), "nothing but the bias"
    assert _without_inputs(module) == pytest.approx(math.log(0.002 / 0.998), abs=1e-5)
    assert abs(_without_inputs(drawn)) < 2, "the control"


@pytest.mark.parametrize("model", BUILT_IN)
def test_a_number_is_the_bias_whatever_the_rate(make_job: MakeJob, model: dict[str, object]) -> None:
    for given in (-3.5, 0):
        module = build_model(make_job(**model, output_bias=given), (0.002,))
        assert _without_inputs(module) == pytest.approx(given, abs=1e-6)


def test_without_a_rate_the_bias_is_drawn(make_job: MakeJob) -> None:
    assert torch.equal(_flat(build_model(make_job())), _flat(build_model(make_job(output_bias="drawn"))))


def test_an_own_model_needs_the_method(make_job: MakeJob, write_module: WriteModule) -> None:
    module = write_module(OWN)
    without = make_job(name=f"{module}:Without")
    assert torch.equal(_flat(build_model(without, (0.1,))), _flat(build_model(without)))
    assert _without_inputs(build_model(make_job(name=f"{module}:With"), (0.5,))) == 0.0
    with pytest.raises(
        JobFileError, match=r"model.output_bias: -2 given; .*:Without has no method set_output"
    ):
        build_model(make_job(name=f"{module}:Without", output_bias=-2.0))
    with pytest.raises(JobFileError, match="set_output_bias failed: KeyError: 'bias'"):
        build_model(make_job(name=f"{module}:Fails"), (0.1,))
