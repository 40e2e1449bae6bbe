"""What the command line says of what cannot be used: one line, no traceback, and a code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.nodes.supervisor import starter
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.check_in_process import CheckStarter

ROLES = ["reader", "trainer", "embedding", "sync"]
JOIN = ["--join", "tcp://127.0.0.1:1"]
JOB = '[data]\nformat = "parquet"\npath = "train.parquet"\n'


def _shadowsync(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shadowsync.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job file in the working directory; its input does not exist."""
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB, encoding="utf-8")
    return "job.toml"


@pytest.fixture
def refuse(job_file: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command says on standard error, in one line, when it ends with `code`.

    No process is started; `test_the_real_process_ends_with_the_code` has those of a run.
    """
    del job_file
    monkeypatch.setattr(starter, "make_starter", CheckStarter)

    def refuse(code: int, *arguments: str) -> str:
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, result.stderr
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1, result.stderr
        assert result.stderr.startswith(f"shadowsync {arguments[0]}: ")
        assert isinstance(result.exception, SystemExit)
        return result.stderr.removeprefix(f"shadowsync {arguments[0]}: ").rstrip("\n")

    return refuse


@pytest.mark.parametrize("command", [["run"], ["coordinator"], *([role, *JOIN] for role in ROLES)])
def test_job_files_that_cannot_be_used(refuse: Callable[..., str], command: list[str]) -> None:
    Path("wrong.toml").write_text("[data\n", encoding="utf-8")
    name, *more = command
    assert refuse(2, name, "absent.toml", *more) == (
        "absent.toml: no such job file; give the path of a TOML file"
    )
    assert refuse(2, name, "wrong.toml", *more).startswith("wrong.toml: is not valid TOML (Expected ']'")
    assert refuse(2, name, "job.toml", *more, "--set", "trainer.worker=2") == (
        "job.toml and --set: trainer.worker: unknown key; did you mean 'workers'?"
    )
    assert "write section.key=value" in refuse(2, name, "job.toml", *more, "--set", "workers=2")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["sync.algorithm=easdg"], "sync.algorithm: 'easdg' is not an algorithm; did you mean 'easgd'?"),
        (
            ["sync.algorithm=easgd", "sync.nodes=0"],
            "sync.nodes: 0 given; easgd keeps a center and needs at least 1 sync node",
        ),
        (
            ["sync.options.elastic_rate=2"],
            "sync.options.elastic_rate: 2 given; give a number above 0 and at most 1",
        ),
        (
            ["model.name=dlmr"],
            "model.name: 'dlmr' is not a known model; give one of autoint, dcn_v2, deepfm, din, ",
        ),
        (
            ["sync.nodes=0", "sync.algorithm=none", "model.name=no_such_package:Model"],
            "model.name: 'no_such_package:Model' cannot be imported (ModuleNotFoundError: No module named "
            "'no_such_package'); install the package that holds it, or set PYTHONPATH to its folder",
        ),
        (["data.readers=2", "run.deterministic=true"], "job.toml and --set: data.readers: 2 given; run.det"),
    ],
)
def test_jobs_that_cannot_be_run(refuse: Callable[..., str], changes: list[str], said: str) -> None:
    """Nothing is started for them."""
    options = [part for change in changes for part in ("--set", change)]
    assert refuse(2, "run", "job.toml", *options).startswith(said)
    assert os.listdir(".") == ["job.toml"], "no run folder"


def test_resolved_job_takes_no_override(refuse: Callable[..., str]) -> None:
    """It would be another job than the others have; before, the override was dropped without a word."""
    Path("job.json").write_text("{}", encoding="utf-8")
    assert refuse(2, "reader", "job.json", *JOIN, "--set", "trainer.workers=2") == (
        "job.json: --set cannot change a resolved job; give the TOML file"
    )
    assert refuse(2, "reader", "job.json", *JOIN) == "job.json: [data]: is missing; add it"
    assert "cannot be read" in refuse(2, "reader", "absent.json", *JOIN)


@pytest.mark.parametrize(
    ("name", "said"), [("absent", "there is no such folder"), (".", "there is no checkp")]
)
def test_eval_of_no_run(refuse: Callable[..., str], name: str, said: str) -> None:
    text = refuse(3, "eval", name, "--data", "x.parquet")
    assert text.startswith(f"{name}: {said}")
    assert text.endswith("give the folder of a run that has written a checkpoint")


def test_generate_where_nothing_can_be_written(refuse: Callable[..., str]) -> None:
    said = refuse(3, "generate", "job.toml/log", "--examples", "10")
    assert said == "job.toml/log: cannot be written (Not a directory); choose another directory"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "Missing argument 'JOB.toml'"),
        (["runn", "job.toml"], "No such command 'runn'"),
        (["run", "job.toml", "--fast"], "No such option '--fast'"),
        (["run", "job.toml", "--autoscale", "1:8"], "--autoscale was removed: no measurement showed"),
        (["run", "job.toml", "--target", "1k/s"], "--target was removed: "),
        (["scale", "runs/latest", "--autoscale", "1:8"], "with shadowsync scale runs/latest trainer=4"),
        (["tune", "job.toml", "--search", "sync.gap=1,2"], "tune was removed: "),
        (["tune"], "search with Optuna"),
        (["render", "rayjob", "job.toml"], "render rayjob was removed: "),
        (["reader", "job.toml"], "Missing option '--join'"),
        (["eval", "runs/latest"], "Missing option '--data'"),
        (["generate"], "Missing argument 'DIRECTORY'"),
        (["generate", "log", "--examples", "0"], "0 is not in the range x>=1"),
        (["generate", "log", "--click-rate", "0"], "0.0 is not in the range 0.0001<=x<=0.5"),
        (["generate", "log", "--format", "csv"], "'csv' is not one of 'parquet', 'criteo_tsv'"),
        (["generate", "s3://bucket/log"], "s3://bucket/log is a URL; give a path on this machine"),
        (["export", "runs/latest", "--out", "s3://bucket/x"], "is a URL; give a path on this machine"),
        (["merge", "a", "b", "--out", "s3://bucket/x"], "is a URL; give a path on this machine"),
        (["predict", "runs/latest", "--data", "x", "--out", "."], "File '.' is a directory"),
        (["simulate", "x.json", "--bandwidth", "1gbit", "--out", "job.toml"], "'job.toml' is a file"),
        (["chaos", "job.toml", "--out", "job.toml"], "'job.toml' is a file"),
        (["chaos", "job.toml", "--longest-stop", "nan"], "nan is not a number"),
        (["profile", "job.toml", "--seconds", "nan"], "nan is not a number"),
        (["profile", "job.toml", "--seconds", "4.9"], "4.9 is not in the range 5.0<=x<=3600.0"),
    ],
)
def test_command_lines_that_cannot_be_used(job_file: str, arguments: list[str], said: str) -> None:
    del job_file
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == ExitCode.USAGE
    last = result.stderr.rstrip("\n").rpartition("\n")[2]
    assert last.startswith("Error: ")
    assert said in last.replace("option:", "option")
    assert not Path("log").exists()
    assert not Path("s3:").exists()


def test_a_hub_whose_book_has_no_folder_does_not_begin(refuse: Callable[..., str]) -> None:
    assert refuse(2, "hub", "--book", "absent/book.json") == (
        "--book absent/book.json: has no folder; make it, or give another path"
    )


def test_the_real_process_ends_with_the_code(job_file: str) -> None:
    """Through the interpreter, not click's runner: the code and the one line arrive."""
    done = _shadowsync("run", job_file, "--set", "trainer.worker=2")
    assert done.returncode == ExitCode.USAGE
    assert done.stdout == ""
    said = "job.toml and --set: trainer.worker: unknown key; did you mean 'workers'?"
    assert done.stderr == f"shadowsync run: {said}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--join", "nonsense"],
            "nonsense: is not an address to join (Invalid argument); write tcp://HOST:PORT",
        ),
        ([*JOIN, "--bind", "127.0.0.1:99999"], "127.0.0.1:99999: there is no port 99999; give one up to"),
    ],
)
def test_addresses_that_cannot_be_used(job_file: str, options: list[str], said: str) -> None:
    done = _shadowsync("reader", job_file, *options)
    assert done.returncode == ExitCode.CLUSTER
    assert done.stderr.startswith(f"shadowsync reader: {said}")
    assert done.stderr.count("\n") == 1
