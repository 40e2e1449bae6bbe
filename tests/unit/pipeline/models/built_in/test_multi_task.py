"""Models of several labels against their formulas in float64, and the contract of those of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.model import ModelSection
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.models.built_in.multi_task import PLE, ExtractionLevel, MMoE, SharedBottom
from shadowsync.pipeline.models.registry import build_model, log_odds
from shadowsync.pipeline.models.training.loss import TrainingLoss, focal_loss
from torch import nn

from ..conftest import Array, inputs_of, through

WriteModule = Callable[[str], str]
BATCH, DENSE, DIMS = 6, 3, [2, 4]
# Of four units, one layer in some twenty is drawn with none that is alive, and hides what is before it.
WIDE = [64]

OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, dense_features, embedding_dims, tasks=1, columns=0):
        super().__init__()
        self.last = nn.Linear(dense_features, columns or tasks)
    def forward(self, dense, embeddings):
        return self.last(dense)

class Biased(Own):
    def set_output_bias(self, logits):
        self.last.bias.data.copy_(torch.tensor(logits))

class OneLogit(Own):
    def forward(self, dense, embeddings):
        return self.last(dense)[:, 0]

class NoTasks(nn.Module):
    def __init__(self, dense_features, embedding_dims, tasks_of_mine=2):
        super().__init__()
        self.last = nn.Linear(dense_features, tasks_of_mine)
    def forward(self, dense, embeddings):
        return self.last(dense)
"""


def job_of(*names: str, **model: Any) -> Job:
    columns: dict[str, Any] = dict.fromkeys(names, "label")
    columns |= {"d": "dense", "e": "dense", "f": "dense", "x": "categorical", "y": "categorical"}
    data = {"format": "parquet", "path": ["x"], "columns": columns}
    small = {"embedding_dim": 2, "table_rows": 5, "bottom": [5], "top": [4]}
    return Job.model_validate({"data": data, "model": small | model})


def inputs() -> tuple[torch.Tensor, list[torch.Tensor]]:
    return inputs_of(BATCH, DENSE, DIMS, seed=5, dtype=torch.float64)


def joined() -> Array:
    dense, embeddings = inputs()
    found: Array = torch.cat([dense, *embeddings], dim=1).numpy()
    return found


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("bottom", [[], [7], [7, 5]])
def test_shared_bottom_is_a_tower_on_shared_layers(tasks: int, bottom: list[int]) -> None:
    model = SharedBottom(DENSE, DIMS, bottom=bottom, top=[4], tasks=tasks).double()
    shared = through(model.bottom, joined(), last_relu=True)
    expected = np.concatenate([through(t, shared, last_relu=False) for t in model.towers], axis=1)
    found = model(*inputs()).detach().numpy()
    assert found.shape == ((BATCH,) if tasks == 1 else (BATCH, tasks))
    np.testing.assert_allclose(found.reshape(BATCH, tasks), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("experts", [1, 4])
def test_mmoe_is_equations_6_and_7(tasks: int, experts: int) -> None:
    model = MMoE(DENSE, DIMS, bottom=[16, *WIDE], top=WIDE, experts=experts, tasks=tasks).double()
    x = joined()
    outputs = [through(expert, x, last_relu=True) for expert in model.experts]
    expected, even = np.zeros((BATCH, tasks)), np.zeros((BATCH, tasks))
    for task, (gate, tower) in enumerate(zip(model.gates, model.towers, strict=True)):
        assert isinstance(gate, nn.Linear)
        assert gate.bias is None
        scores = np.exp(x @ gate.weight.detach().numpy().T)
        shares = scores / scores.sum(axis=1, keepdims=True)
        mixed = sum(shares[:, [at]] * output for at, output in enumerate(outputs))
        expected[:, [task]] = through(tower, np.asarray(mixed), last_relu=False)
        even[:, [task]] = through(tower, sum(outputs) / experts, last_relu=False)
    found = model(*inputs()).detach().numpy().reshape(BATCH, tasks)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    if experts > 1:
        assert np.abs(found - even).max() > 1e-6, "the control: gates that do not look at x"


def extracted(level: ExtractionLevel, x: list[Array]) -> list[Array]:
    """Equations 5 and 6, expert by expert."""

    def mixed(gate: nn.Module, seen: Array, experts: list[Array]) -> Array:
        assert isinstance(gate, nn.Linear)
        scores = np.exp(seen @ gate.weight.detach().numpy().T)
        shares = scores / scores.sum(axis=1, keepdims=True)
        return np.asarray(sum(shares[:, [number]] * output for number, output in enumerate(experts)))

    shared = [through(expert, x[-1], last_relu=True) for expert in level.shared]
    own = [
        [through(expert, x[label], last_relu=True) for expert in cast(nn.ModuleList, experts)]
        for label, experts in enumerate(level.own)
    ]
    outputs = [mixed(gate, x[label], own[label] + shared) for label, gate in enumerate(level.gates)]
    if level.shared_gate is None:
        return outputs
    return [*outputs, mixed(level.shared_gate, x[-1], [one for experts in own for one in experts] + shared)]


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("levels", [1, 3])
def test_ple_is_its_equations_level_by_level(tasks: int, levels: int) -> None:
    counts = {"levels": levels, "experts": 2, "shared_experts": 3, "tasks": tasks}
    model = PLE(DENSE, DIMS, bottom=[16, *WIDE], top=WIDE, **counts).double()
    outputs = [joined()] * (tasks + 1)
    for number, level in enumerate(model.levels):
        assert isinstance(level, ExtractionLevel)
        outputs = extracted(level, outputs)
        assert len(outputs) == tasks + (number < levels - 1), "nothing sees the last shared part"
    expected = [through(tower, x, last_relu=False) for tower, x in zip(model.towers, outputs, strict=True)]
    found = model(*inputs()).detach().numpy().reshape(BATCH, tasks)
    np.testing.assert_allclose(found, np.concatenate(expected, axis=1), rtol=1e-12, atol=1e-12)


def test_a_label_of_ple_moves_no_experts_of_another_in_the_last_level() -> None:
    """In the first one it does, by way of the shared part."""
    model = PLE(DENSE, DIMS, bottom=WIDE, top=WIDE, levels=2, tasks=2).double()
    model(*inputs())[:, 1].sum().backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert any(name.startswith("levels.0.own.0") for name in moved)
    assert any(name.startswith("levels.1.own.1") for name in moved)
    assert not any(name.startswith(("levels.1.own.0", "towers.0", "levels.1.gates.0")) for name in moved)


def test_a_label_moves_its_own_tower_and_gate_and_what_is_shared() -> None:
    model = MMoE(DENSE, DIMS, bottom=WIDE, top=WIDE, experts=2, tasks=2).double()
    model(*inputs())[:, 1].sum().backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert {"gates.1.weight", "towers.1.0.weight", "experts.0.0.weight", "experts.1.0.weight"} <= moved
    assert not {name for name in moved if name.startswith(("gates.0", "towers.0"))}


@pytest.mark.parametrize("name", ["shared_bottom", "mmoe", "ple"])
def test_each_label_starts_at_its_rate(name: str) -> None:
    module = build_model(job_of("a", "b", name=name), (0.002, 0.3))
    drawn = build_model(job_of("a", "b", name=name, output_bias="drawn"), (0.002, 0.3))
    for made, is_set in ((module, True), (drawn, False)):
        for key, parameter in made.named_parameters():
            if "bias" not in key or "experts" in key or "bottom" in key:
                parameter.data.zero_()
        with torch.no_grad():
            found = made(torch.ones(1, 3), [torch.zeros(1, 2)] * 2)[0].tolist()
        expected = [pytest.approx(log_odds(rate), abs=1e-5) for rate in (0.002, 0.3)]
        assert (found == expected) == is_set
    one = build_model(job_of("a", name=name), (0.002,))
    assert one(torch.ones(2, 3), [torch.zeros(2, 2)] * 2).shape == (2,)


def test_a_model_of_ones_own(write_module: WriteModule) -> None:
    module = write_module(OWN)
    dense, tables = torch.ones(2, 3), [torch.zeros(2, 2)] * 2
    own = build_model(job_of("a", "b", name=f"{module}:Biased"), (0.2, 0.3))
    own.get_parameter("last.weight").data.zero_()
    assert own(dense, tables)[0].tolist() == pytest.approx([log_odds(0.2), log_odds(0.3)])
    assert build_model(job_of("a", "b", name=f"{module}:NoTasks"))(dense, tables).shape == (2, 2)


@pytest.mark.parametrize(
    ("labels", "model", "said"),
    [
        (
            ("a", "b"),
            {"name": "OneLogit"},
            "OneLogit.forward returned torch.float32 [2] for a batch of 2; return float32 logits [B, 2], a"
            " column for each of a, b",
        ),
        (("a", "b"), {"name": "Own", "options": {"columns": 3}}, "returned torch.float32 [2, 3] for a batch"),
        (
            ("a", "b"),
            {"name": "Own", "options": {"tasks": 2}},
            "model.options.tasks: given; it is the number of labels in data.columns, 2; leave it out",
        ),
        (("a",), {"name": "mmoe", "options": {"tasks": 2}}, "options.tasks: given; it is the number of"),
        (("a",), {"name": "mmoe", "options": {"experts": 0}}, "experts: 0 given; give 1 to 1024"),
        (("a",), {"name": "ple", "options": {"levels": 0}}, "levels: 0 given; give 1 to 1024"),
        (("a",), {"name": "ple", "bottom": []}, "bottom: no widths given; an expert of ple has at least"),
        (("a",), {"name": "mmoe", "bottom": []}, "bottom: no widths given; an expert of mmoe has at least"),
        (("a",), {"name": "mmoe", "options": {"towers": 2}}, "mmoe cannot be made with"),
    ],
)
def test_what_is_refused(
    write_module: WriteModule, labels: tuple[str, ...], model: dict[str, Any], said: str
) -> None:
    own = {"name": f"{write_module(OWN)}:{model['name']}"} if model["name"] not in ("mmoe", "ple") else {}
    with pytest.raises(JobFileError) as caught:
        build_model(job_of(*labels, **(model | own)))
    assert said in str(caught.value)


def _case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    labels = (torch.rand(50, 3, generator=generator) < 0.4).double()
    return logits, labels, torch.rand(50, generator=generator).double()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "model", [{}, {"positive_weight": 4.0}, {"loss": "focal"}, {"loss": "focal", "focal_gamma": 0.5}]
)
def test_the_loss_is_the_weighted_sum_of_the_labels_means(weighted: bool, model: dict[str, Any]) -> None:
    logits, labels, weights = _case()
    section = ModelSection.model_validate(model)
    loss = TrainingLoss(section, (1.0, 0.25, 0.0))
    assert not loss.is_plain
    given = weights if weighted else None
    alone = [float(TrainingLoss(section).mean(logits[:, t], labels[:, t], given)) for t in range(3)]
    found = float(loss.mean(logits, labels, given))
    assert found == pytest.approx(alone[0] + 0.25 * alone[1], rel=1e-12)
    assert abs(found - sum(alone)) > 1e-3, "the control"


def test_the_loss_by_hand() -> None:
    logits, labels, weights = _case()
    z, y, w = logits.numpy(), labels.numpy(), weights.numpy()
    each = -(y * np.log(1 / (1 + np.exp(-z))) + (1 - y) * np.log(1 / (1 + np.exp(z))))
    expected = (w[:, None] * each).sum(axis=0) / w.sum() @ [1.0, 2.0, 0.5]
    found = TrainingLoss(ModelSection(), (1.0, 2.0, 0.5)).mean(logits, labels, weights)
    assert float(found) == pytest.approx(float(expected), rel=1e-12)
    p = 1 / (1 + np.exp(-np.where(y == 1, z, -z)))
    np.testing.assert_allclose(
        focal_loss(logits, labels, 2.0).numpy(), -((1 - p) ** 2) * np.log(p), rtol=1e-9
    )
    assert math.isfinite(float(found))
