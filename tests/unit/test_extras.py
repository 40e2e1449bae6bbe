"""Without an optional package, what needs it says which to install, and a job says what it leaves out."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.nodes.coordinator.main import run_coordinator
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.jobfile.extras import left_out, missing_modules

JOB = '[data]\nformat = "parquet"\npath = "train.parquet"\n'


def block(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """As if they were not installed: neither found nor importable."""
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("scipy", ["compare", "job.toml", "--algorithms", "none"], "shadowsync compare needs scipy: [lab]"),
        ("matplotlib", ["profile", "job.toml"], "shadowsync profile needs matplotlib: [plots]"),
        (
            "simpy",
            ["simulate", "job.toml", "--profile", "absent", "--bandwidth", "1gbit"],
            "shadowsync simulate needs simpy: [lab]",
        ),
    ],
)
def test_a_command_says_which_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB, encoding="utf-8")
    with monkeypatch.context() as without:
        block(without, module)
        result = CliRunner().invoke(main, arguments)
    what, _, extra = said.rpartition(" ")
    assert result.stderr == f"shadowsync {arguments[0]}: {what} pip install 'shadowsync{extra}'\n"
    assert result.exit_code == 2
    other = CliRunner().invoke(main, arguments)
    assert "pip install" not in other.stderr, "the control: it fails for another reason, there is no data"
    assert other.exit_code != 0


def test_a_job_says_in_one_line_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"format": "parquet", "path": ["/x"]}
    plain = Job.model_validate({"data": data})
    watched = Job.model_validate({"data": data, "watch": {"web": "0", "metrics_port": 9100}})
    assert left_out(watched) == "", "the control: all is installed here"
    block(monkeypatch, "aiohttp", "matplotlib", "tensorboard")
    assert missing_modules("metrics") == ["aiohttp"]
    pictures = "left out: the pictures of the report"
    assert left_out(plain) == f"{pictures}; pip install 'shadowsync[plots]' adds it"
    assert left_out(watched) == (
        f"{pictures}, the page, the metrics; pip install 'shadowsync[plots,web,metrics]' adds it"
    )
    assert "metrics" not in left_out(watched, metrics_port=0)


@pytest.mark.parametrize("validation", [{}, {"every_examples": 1000}])
def test_validation_is_refused_by_a_coordinator_without_torch(
    monkeypatch: pytest.MonkeyPatch, validation: dict[str, int]
) -> None:
    """With data for it the last checkpoint is validated in any case."""
    data = {"format": "parquet", "path": ["/absent"], "validation_path": ["/absent-too"]}
    job = Job.model_validate({"data": data, "validation": validation})
    settings = NodeSettings(job=job, bind="127.0.0.1")
    with monkeypatch.context() as without:
        block(without, "torch")
        with pytest.raises(JobFileError, match=r"^the job has validation data, but there is no torch on"):
            asyncio.run(run_coordinator(settings))
    with pytest.raises(DataError, match="absent"):
        asyncio.run(run_coordinator(settings))
