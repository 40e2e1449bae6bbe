"""The dense part exported: every model, any number of examples, and what cannot be exported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.models.built_in.autoint import AutoInt
from shadowsync.pipeline.models.built_in.dcn_v2 import DCNv2
from shadowsync.pipeline.models.built_in.deepfm import DeepFM
from shadowsync.pipeline.models.built_in.din import DIN
from shadowsync.pipeline.models.built_in.dlrm import DLRM
from shadowsync.pipeline.models.built_in.finalmlp import FinalMLP
from shadowsync.pipeline.models.built_in.multi_task import PLE
from shadowsync.pipeline.models.built_in.two_tower import TowerInputs, TwoTower
from shadowsync.pipeline.models.built_in.wide_deep import WideDeep
from shadowsync.pipeline.models.layers.sequences import EmbeddedSequence, ModelInput
from shadowsync.pipeline.models.own.loss import ScoringModule
from shadowsync.pipeline.saved_model import dense_export
from shadowsync.pipeline.saved_model.dense_export import Format, export_dense
from torch import nn

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnxscript", "onnxruntime"))


def scores_of_towers(dense_features: int, embedding_dims: list[int], **options: Any) -> nn.Module:
    return ScoringModule(TwoTower(dense_features, embedding_dims, **options))


TOWERS = {"query": TowerInputs([0, 1], [0]), "item": TowerInputs([2], [1])}
MODELS: dict[str, tuple[Callable[..., nn.Module], int, list[int], dict[str, Any]]] = {
    "dlrm": (DLRM, 3, [4, 4], {"bottom": [8], "top": [8]}),
    "dlrm without numbers": (DLRM, 0, [4, 4], {"bottom": [8], "top": [8]}),
    "dlrm of several widths": (DLRM, 3, [4, 2], {"bottom": [8], "top": [8], "project": True}),
    "wide_deep": (WideDeep, 3, [4, 2], {"top": [8]}),
    "deepfm": (DeepFM, 3, [4, 4], {"top": [8]}),
    "autoint": (AutoInt, 3, [4, 4], {"top": [8]}),
    "finalmlp": (FinalMLP, 3, [4, 2], {"bottom": [8], "top": [8], "heads": 2}),
    "ple": (PLE, 3, [4, 2], {"bottom": [8], "top": [8]}),
    "two_tower": (scores_of_towers, 3, [4, 2], {**TOWERS, "top": [8]}),
    "dcn_v2": (DCNv2, 3, [4, 2], {"top": [8], "rank": 2, "structure": "parallel"}),
}


def opened(path: Path, names: list[str]) -> Callable[..., Any]:
    """The function that an exported file is: logits of tensors in the order of the names of its inputs."""
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()
        tables = 1 + sum(name.startswith("table:") for name in names)

        def exported(*given: torch.Tensor) -> Any:
            lengths = [list(given[tables:])] if given[tables:] else []
            return module(given[0], list(given[1:tables]), *lengths).numpy()

        return exported
    import onnxruntime

    session = onnxruntime.InferenceSession(path)

    def run(*given: torch.Tensor) -> Any:
        values = {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)}
        # An input of no width is none that the model reads.
        return session.run(["logits"], {place.name: values[place.name] for place in session.get_inputs()})[0]

    return run


@pytest.mark.parametrize(
    ("form", "name"),
    [
        *(("torch-export", name) for name in MODELS),
        ("onnx", "dlrm"),
        pytest.param("onnx", "dcn_v2", marks=pytest.mark.matrix),
        pytest.param("onnx", "two_tower", marks=pytest.mark.matrix),
    ],
)
def test_an_exported_model_gives_the_same_logits(tmp_path: Path, form: Format, name: str) -> None:
    if form == "onnx" and not HAS_ONNX:
        pytest.skip("needs onnxscript and onnxruntime")
    kind, width, dims, options = MODELS[name]
    torch.manual_seed(1)
    module = kind(width, dims, **options).eval().requires_grad_(False)
    path = tmp_path / dense_export.FILES[form]
    names = ["dense", "table:0", "table:1"]
    export_dense(module, width, dims, names, form, path)
    run = opened(path, names)
    for examples in (1, 2, 7):
        dense, embeddings = torch.randn(examples, width), [torch.randn(examples, dim) for dim in dims]
        expected = module(dense, embeddings).numpy()
        found = run(dense, *embeddings)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        other = run(dense + 1.0, embeddings[0] + 1.0, embeddings[1])
        assert np.abs(other - expected).max() > 1e-4, "the control: it is the model, no constant"


@pytest.mark.parametrize(
    ("form", "positions", "most"),
    [
        ("torch-export", True, 9),
        ("onnx", True, 1),
        pytest.param("torch-export", False, 9, marks=pytest.mark.matrix),
        pytest.param("torch-export", True, 1, marks=pytest.mark.matrix),
        pytest.param("onnx", True, 9, marks=pytest.mark.matrix),
    ],
)
def test_din_takes_lists_of_any_length(tmp_path: Path, form: Format, positions: bool, most: int) -> None:
    if form == "onnx" and not HAS_ONNX:
        pytest.skip("needs onnxscript and onnxruntime")
    torch.manual_seed(1)
    inputs = [ModelInput("history", 4, most), ModelInput("item", 4, None)]
    module = DIN(3, [4, 4], inputs=inputs, top=[8], attention={"history": "item"}, positions=positions)
    for place in module.places.values():
        torch.nn.init.normal_(place)
    module.eval().requires_grad_(False)
    path = tmp_path / dense_export.FILES[form]
    names = ["dense", "table:history", "table:item", "lengths:history"]
    export_dense(module, 3, [4, 4], names, form, path, {0: most})
    run = opened(path, names)
    for examples, longest in ((1, 1), (2, min(9, most)), (7, min(4, most))):
        dense, item = torch.randn(examples, 3), torch.randn(examples, 4)
        lengths = torch.randint(0, longest + 1, (examples,))
        history = torch.randn(examples, longest, 4)
        expected = module(dense, [EmbeddedSequence(history, lengths), item]).numpy()
        np.testing.assert_allclose(run(dense, history, item, lengths), expected, rtol=1e-4, atol=1e-5)
        other = run(dense, history, item, longest - lengths)
        differ = (2 * lengths != longest).numpy()
        assert (np.abs(other - expected)[differ] > 1e-5).all(), "the control: it sees the lengths"


class Branching(nn.Module):
    """Its way through hangs on values, which an exporter cannot follow."""

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Logits of a kind."""
        return dense.sum(1) if float(dense.sum()) > 0 else embeddings[0].sum(1)


def test_a_model_that_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"Branching: the model cannot be exported \(\w+: .+\); see"):
        export_dense(Branching(), 3, [4], ["dense", "table:0"], "torch-export", tmp_path / "x.pt2")
    assert list(tmp_path.iterdir()) == []


def test_onnx_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        JobFileError, match=r"^--format onnx needs onnxscript: pip install 'shadowsync\[onnx\]'$"
    ):
        dense_export.require_exporter("onnx")
    dense_export.require_exporter("torch-export")
