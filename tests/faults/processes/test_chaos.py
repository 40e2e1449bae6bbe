"""`shadowsync chaos` on a small job: a fault of each role, of all kinds, and all adds up."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import JobMaker, RunFolder

ROLES = ["reader", "trainer", "embedding", "sync", "coordinator"]
LINKS_AND_DISKS = ["reset", "cut", "stall", "delay", "disk"]


def _chaos(starter: Starter, job_file: JobMaker, folder: Path, seed: int, *options: str) -> tuple[Any, str]:
    """What chaos.json and the output have, when no account is wrong.

    Of the seeds the faults are of all kinds, far from the jobs' ends, and in few jobs.
    """
    job = job_file({"data": {"epochs": 8}, "run": {"node_timeout_seconds": 5.0}})
    faults = ["--kills", str(len(ROLES)), "--seed", str(seed)]
    process = starter.fork("chaos", str(job), *faults, *options, "--clean-runs", "1", "--out", "chaos")
    assert process.wait(580.0) == 0, process.text()
    found = json.loads((folder / "chaos" / "chaos.json").read_text("utf-8"))
    assert found["problems"] == []
    return found, process.text()


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_kill_or_stop_of_each_role(starter: Starter, job_file: JobMaker, tmp_path: Path) -> None:
    options = ["--longest-stop", "2", "--set", "checkpoint.every_seconds=1"]
    found, text = _chaos(starter, job_file, tmp_path, 16, *options)
    aimed = [one["role"] for job in found["jobs"] for one in (*job["injected"], *job["missed"])]
    assert sorted(aimed) == sorted(ROLES)
    assert len(found["jobs"]) == len({job["folder"] for job in found["jobs"]})
    assert "problems: 0" in text


@pytest.mark.matrix
@pytest.mark.no_kill
@pytest.mark.timeout(600)
def test_faults_of_links_and_disks(starter: Starter, job_file: JobMaker, tmp_path: Path) -> None:
    options = ["--faults", ",".join(LINKS_AND_DISKS), "--longest-stop", "2"]
    found, _ = _chaos(starter, job_file, tmp_path, 40, *options)
    aimed = {one["kind"] for job in found["jobs"] for one in (*job["injected"], *job["missed"])}
    assert aimed == set(LINKS_AND_DISKS)
    injected = {one["kind"] for job in found["jobs"] for one in job["injected"]}
    assert len(injected) >= 3, injected


@pytest.mark.matrix
@pytest.mark.no_kill
@pytest.mark.timeout(600)
def test_clocks_that_jump(starter: Starter, job_file: JobMaker, tmp_path: Path) -> None:
    options = ["--faults", "clock", "--longest-stop", "4", "--set", "checkpoint.every_seconds=0.5"]
    found, _ = _chaos(starter, job_file, tmp_path, 206, *options)
    assert {tuple(job["exit_codes"]) for job in found["jobs"]} == {(0,)}
    # The control: a coordinator logs each checkpoint, so its log shows the jump, which lasts for seconds.
    jumps = [
        (one["jump_seconds"], _jumps(RunFolder(tmp_path / job["folder"])))
        for job in found["jobs"]
        for one in job["injected"]
        if one["role"] == "coordinator"
    ]
    assert any(abs(jump - seconds) < 60.0 for seconds, seen in jumps for jump in seen), jumps


def _jumps(run: RunFolder) -> list[float]:
    """By how much the time goes on from line to line of the coordinator's log, where that is minutes."""
    times = [datetime.fromisoformat(line["time"]).timestamp() for line in run.log("coordinator")]
    return [after - before for before, after in pairwise(times) if abs(after - before) > 300.0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kills", "3", "--every", "15s"], "--kills gives a number of faults, and --every makes a soak"),
        (["--for", "20m"], "--for is for a soak; add --every 15s"),
        (["--every", "15"], "'15' given; write a time and its unit, such as 15s, 20m or 2h"),
        (["--every", "0s"], "0.0 is not in the range x>0"),
        (
            ["--every", "15s", "--roles", "trainer,sync"],
            "--roles: the job has no 'sync'; use reader, trainer",
        ),
        (["--faults", "kill,flood"], "--faults: 'flood' is not a kind of fault; use kill, stop, reset, cut"),
        (["--faults", "cut", "--longest-stop", "0.5"], "--faults: cut last 1 s or more"),
    ],
)
def test_kinds_that_cannot_be_are_refused(
    job_file: JobMaker, tmp_path: Path, options: list[str], said: str
) -> None:
    job = job_file({"sync": {"algorithm": "ma", "nodes": None}})
    result = CliRunner().invoke(main, ["chaos", str(job), *options, "--out", str(tmp_path / "chaos")])
    assert result.exit_code == ExitCode.USAGE
    assert said in result.output


def test_a_folder_that_is_not_empty_is_refused(job_file: JobMaker, tmp_path: Path) -> None:
    folder = tmp_path / "chaos"
    folder.mkdir()
    (folder / "of-mine").touch()
    text = said("chaos", str(job_file({})), "--out", str(folder), code=ExitCode.USAGE)
    assert f"--out {folder}: is not empty; give another folder" in text
