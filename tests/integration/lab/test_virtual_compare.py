"""`shadowsync compare --virtual`: its runs, its report, and going on after an interrupt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from shadowsync.cli import main
from shadowsync.lab.virtual import runner
from shadowsync.lab.virtual.markdown import draw_virtual
from shadowsync.lab.virtual.plan import (
    JSON_NAME,
    make_virtual_plan,
    read_virtual_plan,
    result_path,
    results_of,
)
from shadowsync.lab.virtual.summary import summarize_virtual
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.support.jobs.runs import JobMaker

NO_VALIDATION = "validation is not emulated: its rows are neither trained on nor scored"


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["compare", *arguments])


@pytest.fixture
def job(job_file: JobMaker) -> Path:
    return job_file({"trainer": {"batch": 512}})


@pytest.mark.matrix
def test_the_page_has_every_cell_and_a_run_that_is_missing_is_made_again(job: Path) -> None:
    algorithms = ("--algorithms", "easgd,ma@4")
    done = compare(str(job), "--virtual", "--trainers", "2", *algorithms, "--seeds", "1")
    assert done.exit_code == 0, done.output
    (folder,) = (job.parent / "runs").glob("*-virtual")
    plan = read_virtual_plan(folder)
    cells = [("one trainer", 1), ("easgd", 2), ("ma@4", 2)]
    assert [(run.label, run.trainers) for run in plan.runs] == cells
    first = results_of(folder, plan)
    assert len(first) == len(plan.runs)
    table = (folder / "virtual.md").read_text()
    assert "ma@4" in table
    assert {path.name for path in folder.glob("*.png")} == set(re.findall(r"\]\((.+\.png)\)", table))
    assert "INCOMPLETE" not in table
    assert NO_VALIDATION not in done.output, "the control: this job has none"

    lost = plan.runs[1].name
    result_path(folder, lost).unlink()
    again = compare("--resume", str(folder))
    assert again.exit_code == 0, again.output
    assert f"1 of {len(plan.runs)} runs to make" in again.output
    assert results_of(folder, plan)[lost] == first[lost], "the same bytes"

    # Of several numbers of trainers; the results are those of one run.
    plan, _ = make_virtual_plan(load_job(job), "easgd,ma@4", [2, 4], 1, Timing())
    cells = [("one trainer", 1), ("easgd", 2), ("easgd", 4), ("ma@4", 2), ("ma@4", 4)]
    assert [(run.label, run.trainers) for run in plan.runs] == cells
    rows = summarize_virtual(plan, {run.name: first[lost] for run in plan.runs})
    assert [(row.label, row.trainers, row.missing) for row in rows] == [(*cell, 0) for cell in cells]
    assert all(figure.axes[0].get_legend_handles_labels()[1] for figure in draw_virtual(rows).values())


def test_that_validation_is_not_emulated_is_said(
    job_file: JobMaker, validation_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any run is made; here none is."""
    monkeypatch.setattr(runner._Processes, "make", lambda *_: None)
    job = job_file({"trainer": {"batch": 512}, "data": {"validation_path": validation_file}})
    done = compare(str(job), "--virtual", "--algorithms", "none", "--seeds", "1")
    assert done.exit_code == 0, done.output
    assert NO_VALIDATION in done.output


@pytest.mark.matrix
def test_a_run_that_fails_is_said_and_the_others_are_made(job: Path) -> None:
    wrong = ("--set", "trainer.lr=1e30", "--set", "trainer.max_bad_batches=0")
    done = compare(str(job), "--virtual", "--algorithms", "none", "--seeds", "1", *wrong)
    assert done.exit_code == 5, done.output
    assert "FAILED with exit code 2" in done.output
    (folder,) = (job.parent / "runs").glob("*-virtual")
    assert "INCOMPLETE" in (folder / "virtual.md").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--trainers", "2"], "add --virtual"),
        (["--timing", "step_seconds=1"], "add --virtual"),
        (["--virtual", "--trainers", "2,none"], "'2,none' given"),
        (["--virtual", "--trainers", "0"], "'0' given"),
        (["--virtual", "--timing", "steps=1"], "'steps=1' is not KEY=VALUE of step_seconds"),
        (["--virtual", "--timing", "step_seconds=0"], "step_seconds: Input should be greater than 0"),
        (["--virtual", "--timing", "step_seconds=nan"], "step_seconds"),
        (["--virtual", "--timing", "slower=3,-1"], "slower.1"),
        (["--virtual", "--set", "codecs.vectors=bfloat16"], "codecs of rows are not emulated"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    job: Path, given: Sequence[str], said: str
) -> None:
    done = compare(str(job), "--algorithms", "easgd", *given)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert not list(job.parent.glob(f"runs/*/{JSON_NAME}"))
