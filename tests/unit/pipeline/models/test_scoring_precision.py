"""Logits with products in bfloat16 are those of autocast, as in training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.model import TOWER_MODELS
from shadowsync.pipeline.models.own.loss import scoring
from shadowsync.pipeline.models.precision import DenseScorer
from shadowsync.pipeline.models.registry import MODELS, build_model
from torch import nn

BATCH, TABLES, DIM = 40, 4, 32


@pytest.fixture(autouse=True)
def a_cpu_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch computes bfloat16 on any CPU, on most of them slowly."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})


@pytest.fixture(params=[name for name in MODELS if name != "sequence"])
def module_and_job(request: pytest.FixtureRequest, make_job: Callable[..., Job]) -> tuple[nn.Module, Job]:
    """Every model of the registry without sequences, with layers that are large enough to be rounded."""
    towers = {"query": ["I1", "I2", "I3", "C1", "C2"], "item": ["C3", "C4", "I4", "I5"]}
    job = make_job(
        name=request.param,
        dense=5,
        tables=TABLES,
        embedding_dim=DIM,
        bottom=[128, 128],
        top=[128, 64],
        **(towers if request.param in TOWER_MODELS else {}),
    )
    return scoring(job, build_model(job)).eval().requires_grad_(False), job


def test_logits_are_those_of_autocast(module_and_job: tuple[nn.Module, Job]) -> None:
    module, job = module_and_job
    torch.manual_seed(1)
    dense, embeddings = torch.randn(BATCH, 5), [torch.randn(BATCH, DIM) for _ in range(TABLES)]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = module(dense, embeddings).float()
    found = DenseScorer(module, job, "bfloat16").logits(dense, [*embeddings])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)
    plain = DenseScorer(module, job, "float32").logits(dense, [*embeddings])
    assert torch.equal(plain, module(dense, embeddings))
    assert not torch.allclose(found, plain, rtol=1e-5), "the control"


def test_what_examples_share_is_computed_once(make_job: Callable[..., Job]) -> None:
    job = make_job(dense=5, tables=TABLES, embedding_dim=DIM, bottom=[128, 128], top=[128, 64])
    scorer = DenseScorer(build_model(job).eval().requires_grad_(False), job, "bfloat16")
    assert scorer.shares
    torch.manual_seed(1)
    dense, owner = torch.randn(3, 5), torch.arange(BATCH) % 3
    embeddings = [torch.randn(BATCH, DIM) for _ in range(TABLES)]
    found = scorer.logits(dense, [*embeddings], owner)
    torch.testing.assert_close(found, scorer.logits(dense[owner], [*embeddings]), rtol=1e-2, atol=1e-3)
    other = scorer.logits(dense.flip(0)[owner], [*embeddings])
    assert not torch.allclose(found, other, rtol=1e-2, atol=1e-3), "the control"
