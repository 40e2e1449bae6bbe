"""What `--on` refuses before anything starts, and the key that it makes; no Ray is needed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.deployment.ray.held_file import held_key, hold, take_key
from shadowsync.nodes.supervisor import starter
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.wire.keys.job_key import INSECURE_VARIABLE, KEY_VARIABLE, JobKey, job_key
from shadowsync.tests.support.jobs.check_in_process import CheckStarter

SUBMIT = "submit the job: ray job submit --working-dir . -- shadowsync run job.toml --on ray"


def said(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["run", "absent.toml", *arguments])
    assert result.exit_code == ExitCode.USAGE, result.output
    return result.stderr.removeprefix("shadowsync run: ").rstrip("\n")


def test_another_engine_is_refused() -> None:
    assert said("--on", "spark").startswith("--on: 'spark' given; jobs can be run on ray; give `--on ray`")


def test_ray_client_is_refused_with_the_right_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said("--on", "ray://10.0.0.1:10001") == (
        "ray://10.0.0.1:10001: is an address of Ray Client, whose job would end with this machine's"
        f" connection; {SUBMIT}"
    )
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    assert said("--on", "ray").startswith("ray://head:10001: is an address of Ray Client")


def test_a_job_server_is_refused_with_the_right_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what RAY_ADDRESS has for `ray job submit`."""
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    assert said("--on", "ray") == (
        "http://127.0.0.1:8265: is an address of a job server, which takes jobs that are submitted;"
        f" {SUBMIT}; or give the head's address, RAY_ADDRESS=HOST:6379"
    )


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "ray", None)
        assert said("--on", "ray") == "--on ray needs ray: pip install 'shadowsync[ray]'"
    if importlib.util.find_spec("ray") is not None:
        monkeypatch.setattr(starter, "make_starter", CheckStarter)
        assert "no such job file" in said("--on", "ray"), "the control: with it the job is read"


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (KEY_VARIABLE, INSECURE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def read_elsewhere(path: str) -> str:
    """What another process reads."""
    return subprocess.run(["cat", path], capture_output=True, text=True, check=True).stdout


@pytest.mark.usefixtures("no_key")
def test_a_job_without_a_key_gets_one_for_its_time() -> None:
    with held_key() as path:
        key = job_key()
        assert os.environ[KEY_VARIABLE] == path
        assert key is not None
        assert read_elsewhere(path) == key.text
    assert job_key() is None
    with held_key() as other:
        assert job_key() not in (None, key), "each job has its own"
    assert other != path


@pytest.mark.usefixtures("no_key")
def test_a_key_that_was_given_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.key"
    JobKey.generate().write(file)
    monkeypatch.setenv(KEY_VARIABLE, str(file))
    with held_key() as made:
        assert made == ""
        assert os.environ[KEY_VARIABLE] == str(file)
    monkeypatch.delenv(KEY_VARIABLE)
    monkeypatch.setenv(INSECURE_VARIABLE, "1")
    with held_key():
        assert job_key() is None


@pytest.mark.usefixtures("no_key")
def test_an_actor_takes_the_key_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    # What it sets goes with the test.
    monkeypatch.setenv(KEY_VARIABLE, "/of/another/job")
    monkeypatch.setenv(INSECURE_VARIABLE, "")
    given = JobKey.generate()
    take_key(given.text)
    assert job_key() == given
    assert JobKey.read(Path(os.environ[KEY_VARIABLE])) == given, "its rights are as a key's must be"
    take_key("")
    assert job_key() is None
    assert os.environ[INSECURE_VARIABLE] == "1"


def test_a_held_file_is_for_this_user_alone() -> None:
    assert os.stat(hold("x")).st_mode & 0o077 == 0
