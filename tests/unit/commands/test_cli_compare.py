"""`compare`, and the slow network of `run`, as far as they are refused: nothing is started for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from shadowsync.cli import main

JOB = '[data]\nformat = "parquet"\npath = "train.parquet"\n'


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command says, in one line, when it ends with `code` and leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB, encoding="utf-8")

    def refuse(code: int, *arguments: str) -> str:
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        assert os.listdir(".") == ["job.toml"]
        return result.stderr.removeprefix(f"shadowsync {arguments[0]}: ").rstrip("\n")

    return refuse


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--delay", "50"], "network.delay: '50' given; write a number and its unit: 50ms, 0.2s or 800us"),
        # Were it not quoted, TOML would read a number in it.
        (["--bandwidth", "1e9"], "network.bandwidth: '1e9' given; write a number and its unit"),
        (["--delay", 'x"'], "network.delay: 'x\"' given"),
    ],
)
@pytest.mark.parametrize("command", [["run"], ["compare", "--algorithms", "none"]])
def test_networks_that_cannot_be(
    refuse: Callable[..., str], command: list[str], options: list[str], said: str
) -> None:
    text = refuse(2, command[0], "job.toml", *command[1:], *options)
    assert text.startswith(f"job.toml and --set: {said}")


@pytest.mark.parametrize("role", ["coordinator", "sync"])
def test_only_run_can_slow_a_network(refuse: Callable[..., str], role: str) -> None:
    """A node that is started by itself would have ignored it without a word."""
    join = [] if role == "coordinator" else ["--join", "tcp://127.0.0.1:1"]
    assert refuse(2, role, "job.toml", *join, "--set", "network.delay=5ms") == (
        "job.toml: network.delay and network.bandwidth need a supervisor: run, profile or compare; "
        "remove them to start a node by itself"
    )


@pytest.mark.parametrize(
    ("algorithms", "code", "said"),
    [
        ("easgd:elastic_rate=2", 2, "--algorithms easgd:elastic_rate=2: sync.options.elastic_rate: 2 given"),
        ("none,easgd", 3, f"{os.sep}"),
    ],
)
def test_comparisons_that_cannot_be(
    refuse: Callable[..., str], algorithms: str, code: int, said: str
) -> None:
    assert refuse(code, "compare", "job.toml", "--algorithms", algorithms).startswith(said)


@pytest.mark.parametrize("options", [["job.toml"], ["--seeds", "2"], ["--delay", "0ms"], ["--set", "a.b=1"]])
def test_going_on_takes_no_other_option(refuse: Callable[..., str], options: list[str]) -> None:
    assert refuse(2, "compare", "--resume", "x", *options).startswith(
        "--resume takes the job and the options from the comparison"
    )
    assert refuse(2, "compare", "--resume", "x").startswith("x/compare.json: cannot be read"), "the control"


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "job.toml", "--algorithms", "none"],
        ["compare", "job.toml", "--algorithms", "none", "--virtual"],
        ["chaos", "job.toml", "--kills", "1", "--out", "out"],
    ],
    ids=["compare", "virtual", "chaos"],
)
def test_a_job_that_does_not_end_by_itself_is_refused(refuse: Callable[..., str], command: list[str]) -> None:
    assert refuse(2, *command, "--set", "data.follow=true") == (
        "data.follow: true given; such a job does not end by itself; add --set data.follow=false"
    )


@pytest.mark.parametrize("more", [[], ["--virtual"], ["--virtual", "--trainers", "1"]])
def test_one_trainer_is_no_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.tsv").write_text("".join(f"{at % 2}\t{at}\tab\n" for at in range(200)))
    small = "dense_features = 1\ncategorical_features = 1\n"
    Path("job.toml").write_text(f'[data]\nformat = "criteo_tsv"\npath = "log.tsv"\n{small}')
    done = CliRunner().invoke(main, ["compare", "job.toml", "--algorithms", "none,easgd", *more])
    assert done.exit_code == 2, done.output
    assert "one trainer has no other to synchronize with" in done.output
    assert "give more trainers: --" in done.output
    assert sorted(os.listdir(".")) == ["job.toml", "log.tsv"]
