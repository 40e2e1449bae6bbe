"""`shadowsync tune` on real jobs: trials, stops, the best job, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.lab.tuning.space import parse_space
from shadowsync.lab.tuning.study import Study, StudyRules
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.jobfile.load import load_resolved
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import EXAMPLES, JobMaker, RunFolder

SEARCH = ["trainer.lr=0.01,1e-30"]


def test_a_study_of_jobs(starter: Starter, job_file: JobMaker, tmp_path: Path) -> None:
    """Two trials of one setting each; the dense part of one of them learns nothing."""
    job = job_file({"trainer": {"count": 1}, "sync": {"algorithm": "none", "nodes": None}})
    searches = [option for text in SEARCH for option in ("--search", text)]
    study = starter.fork("tune", str(job), *searches, "--trials", "2", "--strategy", "random", "--seed", "0")
    assert study.wait() == ExitCode.OK, study.text()
    folder = tmp_path / "runs" / "small-tune"
    trials = Study(parse_space(SEARCH), StudyRules(strategy="random"), folder / "trials.log").trials
    assert [(trial.state, trial.examples) for trial in trials] == [("complete", EXAMPLES)] * 2
    scores = {trial.parameters["trainer.lr"]: trial.ne for trial in trials}
    best = load_resolved(folder / "best.json")
    assert best.trainer.lr == min(scores, key=lambda rate: scores[rate] or 9.0)
    assert best.run.directory == str(tmp_path / "runs"), "the best job is no trial of the study"
    for trial in trials:
        run = RunFolder(folder / trial.folder)
        assert run.report.ledger.adds_up
        kept = (folder / trial.folder / "checkpoint").exists()
        assert kept == (trial.parameters["trainer.lr"] == best.trainer.lr), "only the best one keeps its"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no --search given"),
        (["--search", "run.seed=1,2"], "run.seed is not to be searched"),
        (["--search", "sync.algorithm=ma,nonsense"], "--search: sync.algorithm = nonsense: "),
        (["--search", "sync.gap=1,2", "--strategy", "random", "--rungs", "2"], "are for --strategy asha"),
        (["--search", "sync.gap=1,2", "--set", 'run.storage="file:///x"'], "run.storage = file:///x given"),
        (["--search", "sync.gap=1,2", "--resume", "runs/x"], "--resume takes the job and the options"),
    ],
)
def test_what_cannot_be_tuned_is_refused_and_nothing_is_written(
    job_file: JobMaker, tmp_path: Path, arguments: list[str], said: str
) -> None:
    result = CliRunner().invoke(main, ["tune", str(job_file()), *arguments])
    assert result.exit_code == ExitCode.USAGE, result.output
    assert said in result.stderr
    assert not (tmp_path / "runs").exists()


def test_what_is_no_study_is_not_resumed(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["tune", "--resume", str(tmp_path)])
    assert result.exit_code == ExitCode.USAGE
    (tmp_path / "tune.json").write_text(json.dumps({"search": []}), encoding="utf-8")
    broken = CliRunner().invoke(main, ["tune", "--resume", str(tmp_path)])
    assert broken.exit_code == ExitCode.USAGE
    assert "tune.json" in broken.stderr
