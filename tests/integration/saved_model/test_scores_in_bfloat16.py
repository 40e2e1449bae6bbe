"""Scores with products in bfloat16: the same everywhere, and refused where they cannot be computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import shadowsync
import torch
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.models.precision import DenseScorer, Precision, find_precision
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.types import Float32Array
from shadowsync.serving.client import ScoringClient
from shadowsync.serving.follower import FollowedModel
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.outside.served import with_client
from torch import nn

ROWS = 200
NATIVE = find_precision("auto", torch.device("cpu")) == "bfloat16"
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def a_cpu_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch computes bfloat16 on any CPU, on most of them slowly."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})


@pytest.fixture(scope="module")
def held_out(click_log: Path) -> Path:
    (file,) = click_log.glob("eval-*.parquet")
    return file


@pytest.fixture(scope="module")
def rows(held_out: Path) -> list[Row]:
    found: list[Row] = pq.read_table(held_out).slice(0, ROWS).drop_columns("label").to_pylist()
    return found


def assert_scores(found: Float32Array, wanted: Float32Array, precision: Precision) -> None:
    """They are equal up to the sums' order, which depends on how many rows are scored at once.

    In bfloat16 that may round a value the other way, in one row of thousands.
    """
    close = np.isclose(found, wanted, rtol=1e-6)
    assert close.mean() >= (1.0 if precision == "float32" else 0.97)
    np.testing.assert_allclose(found, wanted, rtol=2e-3)


def served_scores(run: Path, precision: Precision, rows: list[Row]) -> tuple[list[Float32Array], str]:
    """The scores of rows, of columns, and with all numbers in the context; and what /model says."""
    dense = {name: rows[0][name] for name in rows[0] if name.startswith("I")}

    def ask(client: ScoringClient) -> tuple[list[Float32Array], str]:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        others = {name: values for name, values in columns.items() if name not in dense}
        found = [client.score(rows), client.score(columns), client.score(others, dense)]
        return found, str(client.model()["precision"])

    return with_client(FollowedModel(run, "last", precision=precision), ask)


def test_served_rows_have_the_scores_of_predict_in_each_precision(saved_run: Path, rows: list[Row]) -> None:
    shared = {name: rows[0][name] for name in rows[0] if name.startswith("I")}
    with_shared = [{**row, **shared} for row in rows]
    predicted: dict[str, list[Float32Array]] = {}
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    for precision in precisions:
        model = shadowsync.load(saved_run, "last", precision)
        wanted = [model.predict(rows), model.predict(rows), model.predict(with_shared)]
        found, named = served_scores(saved_run, precision, rows)
        assert named == model.precision == precision
        for got, of_predict in zip(found, wanted, strict=True):
            assert_scores(got, of_predict, precision)
        predicted[precision] = wanted
    for one, other in zip(*predicted.values(), strict=True):
        with pytest.raises(AssertionError):
            assert_scores(one, other, "bfloat16")
        assert 1e-5 < np.abs(one - other).max() < 0.02


def test_scores_do_not_depend_on_how_many_rows_are_scored_at_once(saved_run: Path, rows: list[Row]) -> None:
    model = SavedModel.open(saved_run, "last", "bfloat16")
    whole = model.predict(rows)
    for count in (1, 3, 16, 50):
        parts = [model.predict(rows[at : at + count]) for at in range(0, ROWS, count)]
        assert_scores(np.concatenate(parts), whole, "bfloat16")
    with pytest.raises(AssertionError):
        assert_scores(SavedModel.open(saved_run, "last").predict(rows), whole, "bfloat16")


def test_weights_of_matrices_alone_are_rounded_and_those_of_the_model_stay(saved_run: Path) -> None:
    plain, model = SavedModel.open(saved_run), SavedModel.open(saved_run, precision="bfloat16")
    for one, other in zip(plain.dense.parameters(), model.dense.parameters(), strict=True):
        assert torch.equal(one, other)
    assert model.description == f"{plain.description}, with products in bfloat16"
    types = {name: value.dtype for name, value in model._scorer._module.named_parameters()}
    assert types["top.0.weight"] == torch.bfloat16
    assert types["top.0.bias"] == torch.float32


def test_a_cpu_without_such_products_is_refused(saved_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    with pytest.raises(
        JobFileError, match=r"^precision: .* no instructions .*; give float32, .* AVX512-BF16"
    ):
        SavedModel.open(saved_run, precision="bfloat16")
    assert SavedModel.open(saved_run).precision == "float32", "the control"
    with pytest.raises(JobFileError, match="precision: 'half' given; give 'float32' or 'bfloat16'"):
        SavedModel.open(saved_run, precision="half")  # type: ignore[arg-type]


class Unable(nn.Module):
    """A model that takes its layer's output for float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 1)

    def forward(self, dense: torch.Tensor, _: list[torch.Tensor]) -> torch.Tensor:
        """Return [B]; NumPy has no bfloat16."""
        return torch.from_numpy(self.layer(dense).detach().numpy()).squeeze(1)


def test_a_model_that_cannot_be_computed_so_is_refused(saved_run: Path) -> None:
    job = SavedModel.open(saved_run).job
    module = Unable(job.data.dense_width).eval()
    with pytest.raises(
        JobFileError,
        match=r"precision: .*\.forward fails with products in bfloat16: TypeError: .*; give float32",
    ):
        DenseScorer(module, job, "bfloat16")
    scored = DenseScorer(module, job, "float32").logits(torch.zeros(3, job.data.dense_width), [])
    assert scored.shape == (3,), "the control"


@pytest.mark.matrix
@pytest.mark.skipif(not NATIVE, reason="the CPU has no products in bfloat16")
def test_the_commands(starter: Starter, saved_run: Path, held_out: Path, tmp_path: Path) -> None:
    found = {}
    for precision in ("float32", "bfloat16"):
        out = tmp_path / f"{precision}.parquet"
        said = starter.ended(
            "predict", str(saved_run), "--data", str(held_out), "--out", str(out), "--precision", precision
        )
        assert ("with products in bfloat16" in said) == (precision == "bfloat16")
        scored = starter.fork(
            "eval", str(saved_run), "--data", str(held_out), "--json", "--precision", precision
        )
        assert scored.wait() == 0, scored.text()
        logits = pq.read_table(out)["logit"].to_numpy()
        found[precision] = (logits, json.loads(scored.text().splitlines()[-1])["ne"])
        model = SavedModel.open(saved_run, precision=precision)
        of_python = model.predict(pq.read_table(held_out).slice(0, ROWS))
        assert_scores(pq.read_table(out)["probability"].to_numpy()[:ROWS], of_python, precision)
    (plain, ne), (rounded, rounded_ne) = found.values()
    assert 1e-4 < np.abs(plain - rounded).max() < 0.1
    assert ne != rounded_ne
    assert ne == pytest.approx(rounded_ne, abs=2e-3)
    text = starter.ended("serve", str(saved_run), "--precision", "half", code=2)
    assert "'half' is not one of 'float32', 'bfloat16'" in text
