"""examples/own_model: a user's module in a file, trained and scored as its README says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import shadowsync
import torch
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.models.registry import build_model
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder

EXAMPLE = Path(shadowsync.__file__).resolve().parent / "examples" / "own_model"

if not EXAMPLE.exists():
    pytest.skip("an installed package has no examples beside it", allow_module_level=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example."""
    return Path(
        shutil.copytree(EXAMPLE, tmp_path / "own_model", ignore=shutil.ignore_patterns("__pycache__"))
    )


def test_the_job_file_finds_the_file_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    job = load_job(folder / "job.toml")
    assert job.model.name == f"{folder / 'deepfm.py'}:DeepFM"
    model = build_model(job)
    assert type(model).__name__ == "DeepFM"
    dense, dims = job.model_inputs
    vectors = [torch.randn(5, dim) for dim in dims]
    logits = model(torch.randn(5, dense), vectors)
    assert logits.shape == (5,)
    # The factorization machine, pair by pair: with it alone left, the logit is the sum of all products.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    pairs = sum((vectors[i] * vectors[j]).sum(dim=1) for i in range(len(dims)) for j in range(i))
    torch.testing.assert_close(model(torch.randn(5, dense), vectors), pairs, rtol=1e-4, atol=1e-3)


def test_a_path_by_set_is_taken_against_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    job = load_job(folder / "job.toml", ["model.name=./deepfm.py:DeepFM"])
    assert job.model.name == f"{folder / 'deepfm.py'}:DeepFM"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./none.py:DeepFM", "there is no file"),
        ("./deepfm.py:DeepFN", "has no attribute 'DeepFN'"),
        ("./broken.py:Model", "ZeroDivisionError"),
    ],
)
def test_a_file_that_has_no_model(folder: Path, name: str, said: str) -> None:
    (folder / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    job_file = folder / "job.toml"
    job_file.write_text(job_file.read_text("utf-8").replace("./deepfm.py:DeepFM", name), encoding="utf-8")
    with pytest.raises(JobFileError, match=r"model\.name: .*" + said):
        build_model(load_job(job_file))


def test_it_trains_and_is_scored(folder: Path, click_log: Path, starter: Starter) -> None:
    job_file = folder / "job.toml"
    text = job_file.read_text("utf-8").replace('"log/', f'"{click_log}/').replace("20000", "2000")
    job_file.write_text(f'[run]\ndirectory = "{folder / "runs"}"\n\n{text}', encoding="utf-8")
    starter.ended("run", str(job_file), "--quiet")
    run = RunFolder(folder / "runs" / "job")
    report = run.report
    assert report.examples.distinct == EXAMPLES
    # Not NE: how far the center is when so short a job ends depends on how busy the machine was.
    assert present(run.evaluation.auc) > 0.55, "0.5 is what chance gives, to within 0.01"
    said = starter.ended("eval", str(run.folder), "--data", str(click_log / "eval-*.parquet"), "--json")
    assert json.loads(said.splitlines()[-1])["ne"] == pytest.approx(run.ne, abs=1e-5)
