"""Job files to test with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import load_job, load_resolved

DATA = '[data]\nformat = "parquet"\npath = "train-*.parquet"\n'


@pytest.fixture
def write_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes jobs/nightly.toml; the working directory is another one."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def write(text: str) -> Path:
        file = tmp_path / "jobs" / "nightly.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


@pytest.fixture
def load(write_job: Callable[[str], Path]) -> Callable[..., Job]:
    """The job of `sections` after a good [data], with overrides."""

    def load(sections: str = "", *overrides: str) -> Job:
        return load_job(write_job(DATA + sections), overrides)

    return load


@pytest.fixture
def resolved(tmp_path: Path) -> Callable[[Any], Job]:
    """The job of a run's job.json: that of a job, of its tree, or of a text."""

    def resolved(saved: Job | dict[str, Any] | str) -> Job:
        tree = saved.model_dump_json() if isinstance(saved, Job) else saved
        text = tree if isinstance(tree, str) else json.dumps(tree)
        (tmp_path / "job.json").write_text(text, encoding="utf-8")
        return load_resolved(tmp_path / "job.json")

    return resolved


@pytest.fixture
def refusal(write_job: Callable[[str], Path]) -> Callable[..., str]:
    """What is said of a bad job file, without the file's name: one line, and the exit code of bad usage."""

    def refusal(text: str, *overrides: str) -> str:
        file = write_job(text)
        with pytest.raises(JobFileError) as caught:
            load_job(file, overrides)
        said = str(caught.value)
        assert "\n" not in said
        assert int(caught.value.exit_code) == 2
        return said.removeprefix(str(file)).removeprefix(" and --set").removeprefix(": ")

    return refusal
