"""Models of one's own that keep state beside their parameters, and others that only seem to."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, cast

import numpy as np
import pytest
import torch
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.models.registry import build_model
from shadowsync.pipeline.models.state_check import check_stateless
from torch import nn

_calls = 0


class Base(nn.Module):
    def __init__(self, dense_features: int, embedding_dims: list[int]) -> None:
        super().__init__()
        self.width = dense_features + sum(embedding_dims)
        self.layer = nn.Linear(self.width, 6)
        self.last = nn.Linear(6, 1)
        self.prepare()

    def prepare(self) -> None:
        """Make more."""

    def change(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        x = torch.cat([dense, *embeddings], dim=1)
        logits: torch.Tensor = self.last(self.change(torch.tanh(self.layer(x)))).squeeze(1)
        return logits


class BatchNorm(Base):
    def prepare(self) -> None:
        self.norm = nn.BatchNorm1d(6)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(x)
        return normed


class InstanceNorm(Base):
    def prepare(self) -> None:
        self.norm = nn.InstanceNorm1d(6, track_running_stats=True)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(x.unsqueeze(2).expand(-1, -1, 3))
        return x + normed.mean(dim=2)


class RunningMean(Base):
    mean: torch.Tensor

    def prepare(self) -> None:
        self.register_buffer("mean", torch.zeros(6))

    def change(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        return x - self.mean


class Steps(Base):
    """A counter that nothing reads yet."""

    def prepare(self) -> None:
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def change(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.get_buffer("steps").add_(1)
        return x


class Spectral(Base):
    def prepare(self) -> None:
        nn.utils.parametrizations.spectral_norm(self.layer)


class Counter(Base):
    calls = 0

    def change(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x


class Tensors(Base):
    def prepare(self) -> None:
        self.sums: Any = {"of": [torch.zeros(6)]}

    def change(self, x: torch.Tensor) -> torch.Tensor:
        self.sums["of"][0] += x.detach().sum(dim=0)
        return x


class Hidden(Base):
    def prepare(self) -> None:
        self.register_buffer("ema", torch.zeros(6), persistent=False)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.get_buffer("ema").lerp_(x.detach().mean(dim=0), 0.1)
        return x


class FirstBatch(Base):
    """Initialized by the data of the first batch that differs from zeros."""

    def prepare(self) -> None:
        self.register_buffer("scale", torch.zeros(6))

    def change(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.get_buffer("scale")
        if self.training and not scale.any():
            scale.copy_(x.detach().std(dim=0))
        return x * (1 + scale)


class Before(Base):
    """Mixes in the batch before."""

    def prepare(self) -> None:
        self.last_x: torch.Tensor | None = None

    def change(self, x: torch.Tensor) -> torch.Tensor:
        before, self.last_x = self.last_x, x.detach()
        return x if before is None else x + before


class Global(Base):
    def change(self, x: torch.Tensor) -> torch.Tensor:
        global _calls
        _calls += 1
        return x / _calls


class Drawn(Base):
    def prepare(self) -> None:
        order = np.random.default_rng().permutation(1000)
        self.register_buffer("order", torch.from_numpy(order))


class TiedByMemory(Base):
    def prepare(self) -> None:
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)
        self.down.weight.data = self.up.weight.data


class BufferView(Base):
    def prepare(self) -> None:
        self.register_buffer("row", self.layer.weight.detach()[2])


class Views(Base):
    def prepare(self) -> None:
        self.views: Any = {"of": [self.last.weight.detach()]}


class BatchStatistics(Base):
    def prepare(self) -> None:
        self.norm = nn.BatchNorm1d(6, track_running_stats=False)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        return cast("torch.Tensor", self.norm(x))


class Ranked(Base):
    def change(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (BatchStatistics, r"cannot score one example by itself \(Expected more than 1 value"),
        (Ranked, "scores an example by what others are beside it.*LayerNorm"),
        (TiedByMemory, r"down\.weight has its values in the memory of the parameter up\.weight"),
        (BufferView, r"row has its values in the memory of the parameter layer\.weight"),
        (Views, r"views has its values in the memory of the parameter last\.weight"),
        (BatchNorm, r"buffer norm\.running_mean .*LayerNorm"),
        (InstanceNorm, r"buffer norm\.running_mean .*LayerNorm"),
        (RunningMean, "buffer mean changes"),
        (Steps, "buffer steps changes"),
        (Spectral, r"buffer layer\.parametrizations\.weight\.0\._u"),
        (FirstBatch, "buffer scale changes"),
        (Counter, "attribute calls changes"),
        (Tensors, "attribute sums changes"),
        (Hidden, "attribute ema changes"),
        (Before, "other logits after other batches"),
        (Global, "other logits after other batches"),
        (Drawn, "order is another each time"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_state_is_refused_by_its_name(model: type[Base], said: str) -> None:
    job = job_of(model)
    with pytest.raises(JobFileError, match=rf"(?s)model\.name: .*{model.__name__}: .*{said}"):
        check_stateless(job, build_model(job))


class Constant(Base):
    """Buffers, frozen parameters and attributes that nothing changes; drawn from seeded generators."""

    def prepare(self) -> None:
        self.register_buffer("drawn", torch.randn(6))
        self.register_buffer("permuted", torch.from_numpy(np.random.permutation(6)))
        self.register_buffer("table", torch.arange(6.0), persistent=False)
        self.chosen = random.sample(range(6), 3)
        self.norm = nn.LayerNorm(6)
        self.norm.requires_grad_(False)
        self.dropout = nn.Dropout(0.5)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.dropout(x)) + self.get_buffer("drawn") * self.get_buffer("table")
        return x[:, self.get_buffer("permuted")]


class Tied(Base):
    """A parameter and a buffer of several names, and parameters that are parts of one tensor."""

    def prepare(self) -> None:
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)
        self.down.weight = self.up.weight
        self.listed = [self.up.weight]
        self.first, self.second = (nn.Parameter(part) for part in torch.zeros(12).chunk(2))
        self.register_buffer("drawn", torch.randn(6))
        self.register_buffer("again", self.get_buffer("drawn"))
        self.copied = self.up.weight.detach().clone()

    def change(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(self.up(x)) @ self.listed[0] + self.first * self.second
        return x + self.get_buffer("drawn") - self.get_buffer("again")


class Cached(Base):
    """What one call leaves of itself, or makes once, is no state."""

    def prepare(self) -> None:
        self.mask: torch.Tensor | None = None
        self.attention: torch.Tensor | None = None
        self.recent: deque[int] = deque(maxlen=2)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            self.mask = torch.ones(6)
        self.attention = torch.softmax(x, dim=1)
        self.recent.append(len(x))
        return x * self.mask * self.attention


class Noisy(Base):
    """Draws in forward."""

    def change(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return x + torch.randn_like(x) * random.random() * float(np.random.rand())
        return x


class Clamped(Base):
    """Changes its own parameters, which are synchronized."""

    def change(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.last.weight.clamp_(-0.01, 0.01)
        return x


class Picky(Base):
    """Takes zeros and ones only."""

    def change(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        if not ((dense == 0) | (dense == 1)).all():
            raise ValueError("zeros and ones are expected")
        return super().forward(dense, embeddings)


class DrawsInScoring(Base):
    """Its scores differ from call to call, whatever is beside them."""

    def change(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(len(x), 6)


FINE: list[type[Base]] = [DrawsInScoring, Base, Constant, Tied, Cached, Noisy, Clamped, Picky]


@pytest.mark.parametrize("model", FINE, ids=lambda model: model.__name__)
def test_what_is_no_state_is_taken(model: type[Base]) -> None:
    job = job_of(model)
    module = build_model(job)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    states = torch.random.get_rng_state(), np.random.get_state(legacy=False), random.getstate()
    check_stateless(job, module)
    assert torch.equal(torch.random.get_rng_state(), states[0])
    assert repr(np.random.get_state(legacy=False)) == repr(states[1])
    assert random.getstate() == states[2]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training


@pytest.mark.parametrize("name", ["autoint", "dlrm", "dcn_v2", "deepfm", "finalmlp", "ple", "wide_deep"])
def test_built_in_models_are_not_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(Base, name)
    module = build_model(job)
    monkeypatch.setattr(module, "forward", lambda *_: pytest.fail("ran"))
    check_stateless(job, module)


def job_of(model: type[Base], name: str = "") -> Job:
    return Job.model_validate(
        {
            "data": {"format": "parquet", "path": ["x"], "dense_features": 2, "categorical_features": 2},
            "model": {"name": name or f"{__name__}:{model.__name__}", "embedding_dim": 4, "table_rows": 10},
        }
    )
