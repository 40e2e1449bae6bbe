"""The batch script for Slurm, run by bash with programs in place of srun and shadowsync."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.deployment import slurm
from shadowsync.tests.support.data.parsed import parsed
from shadowsync.tests.support.jobs.processes import wait_until

JOB = """
[data]
format = "parquet"
path = "/data/*.parquet"
[model]
table_rows = 100
[trainer]
count = 3
workers = 2
[sync]
algorithm = "easgd"
"""
# Notes what it was called with; the coordinator ends with CODE, or when it is told to.
SHADOWSYNC = """#!/bin/bash
trap 'echo told >> "$NOTES"; exit 130' TERM
echo "$SHADOWSYNC_KEY_FILE $*" >> "$NOTES"
[ "$1" = coordinator ] || exit 0
[ -z "$ENDLESS" ] || while :; do sleep 0.05; done
exit "$CODE"
"""
# As Slurm's, it gives a step what sbatch was told, and refuses one that asks for no GPUs and for some.
SRUN = """#!/bin/bash
while [ "${1#-}" != "$1" ]; do
  echo "srun $1" >> "$NOTES"
  [ "$1" != --export=ALL ] || unset SLURM_EXPORT_ENV
  shift
done
[ -z "${SLURM_EXPORT_ENV-}${SLURM_GPUS-}${SLURM_GPUS_PER_NODE-}" ] || exit 1
[ "$2" != "$QUEUED" ] || exec sleep 600
exec "$@"
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    (tmp_path / "job.toml").write_text(JOB)

    def made(*more: str) -> str:
        arguments = ["render", "slurm", str(tmp_path / "job.toml"), "--key", "/shared/job.key", *more]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        return result.output

    return made


@contextmanager
def started(
    script: str, folder: Path, code: int = 0, *, endless: bool = False, queued: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """The script as Slurm would start it on the first machine."""
    for name, text in (("srun", SRUN), ("shadowsync", SHADOWSYNC)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "job.sh").write_text(script)
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "NOTES": str(folder / "notes"),
        "CODE": str(code),
        "ENDLESS": "1" if endless else "",
        "QUEUED": queued,
        "SLURMD_NODENAME": "first",
        "SLURM_JOB_ID": "12345",
    }
    with subprocess.Popen(["bash", str(folder / "job.sh")], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def notes(folder: Path) -> list[str]:
    file = folder / "notes"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("code", [0, 6])
def test_it_starts_every_node_and_ends_as_the_coordinator_does(
    script: Callable[..., str], tmp_path: Path, code: int
) -> None:
    with started(script("--set", "trainer.lr=0.02"), tmp_path, code) as process:
        assert process.wait(60.0) == code
    commands = [line.split()[1:] for line in notes(tmp_path) if line.startswith("/shared/job.key ")]
    assert {own[0] for own in commands} == {"coordinator", "reader", "trainer", "embedding", "sync"}
    for role, *arguments in commands:
        given = parsed(role, *arguments)
        assert given["overrides"] == ("trainer.lr=0.02",)
        assert given["exit_zero_on"] == (5,)
        if role == "coordinator":
            assert (given["bind"], given["advertise"]) == ("0.0.0.0:32345", "first")
        else:
            assert given["join"] == "tcp://first:32345"
        with pytest.raises(click.UsageError):
            parsed(role, *arguments, "--sett", "x")
    assert "srun --ntasks=3" in notes(tmp_path)
    assert notes(tmp_path).count("srun --cpus-per-task=3") == 1


def test_a_step_that_waits_for_its_turn_ends_with_the_coordinator(
    script: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "END_SECONDS", 1)
    with started(script(), tmp_path, 4, queued="embedding") as process:
        assert process.wait(60.0) == 4
    # The script waits for all that it has started, so the step has ended, too.
    assert "srun --mem=0" in notes(tmp_path), "the steps share the memory"


def test_only_trainers_have_gpus(script: Callable[..., str]) -> None:
    text = script("--set", "trainer.device=cuda")
    assert "#SBATCH --gpus=3\n" in text
    steps = [line for line in text.splitlines() if line.startswith("$STEP ")]
    assert [line.split()[3] for line in steps if "--ntasks=3" in line] == ["--gpus-per-task=1"]
    assert sum("--gres=none" in line for line in steps) == len(steps) - 1 == 3
    assert not {"--gpus", "--gres"} & set(re.findall(r"--g\w+", script()))


@pytest.mark.parametrize("directive", ["--gres=gpu:2", "--gpus-per-node=2", "-G 2"])
def test_no_step_waits_for_gpus_that_sbatch_was_asked_for(script: Callable[..., str], directive: str) -> None:
    steps = re.findall(
        r"^\$STEP .*\n +shadowsync (\w+)", text := script(f"--sbatch={directive}"), re.MULTILINE
    )
    without = re.findall(r"^\$STEP .* --gres=none .*\n +shadowsync (\w+)", text, re.MULTILINE)
    assert set(steps) - set(without) == {"trainer"}
    assert len(steps) == 4


@pytest.mark.parametrize("variable", ["SLURM_EXPORT_ENV", "SLURM_GPUS", "SLURM_GPUS_PER_NODE"])
def test_steps_start_whatever_sbatch_was_told(
    script: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "NONE" if variable == "SLURM_EXPORT_ENV" else "2")
    with started(script(), tmp_path) as process:
        assert process.wait(60.0) == 0
    commands = {line.split()[1] for line in notes(tmp_path) if line.startswith("/shared/job.key ")}
    assert commands == {"coordinator", "reader", "trainer", "embedding", "sync"}


def test_at_the_end_of_its_time_the_coordinator_is_told(script: Callable[..., str], tmp_path: Path) -> None:
    with started(script(), tmp_path, endless=True) as process:
        wait_until(
            lambda: any(" coordinator " in line for line in notes(tmp_path)), "the coordinator is there"
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(60.0) == 130
    assert "told" in notes(tmp_path)


def test_what_is_given_is_in_it(script: Callable[..., str]) -> None:
    text = script(
        "--sbatch=--partition=gpu", "--sbatch=--time=8:00:00", "--prolog", "source venv/bin/activate"
    )
    assert "#SBATCH --partition=gpu\n#SBATCH --time=8:00:00\n" in text
    # sbatch reads no directive after the first command.
    assert text.rindex("#SBATCH") < text.index("set -u") < text.index("source venv/bin/activate")
    assert "#SBATCH --ntasks=7\n#SBATCH --cpus-per-task=3\n" in text
    assert "--partition" not in script()
    assert "#SBATCH --job-name='two words'\n" in script("--name", "two words")
