"""A coordinator that is killed when the job has ended: the report is what the job did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from shadowsync.nodes.supervisor.child import Child
from shadowsync.nodes.supervisor.starter import SpawnStarter
from shadowsync.nodes.supervisor.supervisor import Supervisor
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.model import Report
from shadowsync.pipeline.report.write import JSON_NAME, MARKDOWN_NAME, read_report

KILLED = -9


class Killed:
    """The coordinator's process, of which nothing is left but its exit."""

    code = KILLED


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    job = Job.model_validate({"data": {"format": "criteo_tsv", "path": ["part.tsv"]}})

    async def make() -> Supervisor:
        return Supervisor(job, lambda _: None, SpawnStarter())

    made = asyncio.run(make())
    made.folder = tmp_path
    yield made
    made._clear_scratch()


def result(supervisor: Supervisor) -> tuple[ExitCode, str, Report | None]:
    supervisor._coordinator = cast(Child, Killed())
    return supervisor._result()


def test_the_report_that_is_there_counts(supervisor: Supervisor, full_report: Report, tmp_path: Path) -> None:
    (tmp_path / JSON_NAME).write_text(full_report.model_dump_json(), encoding="utf-8")
    code, text, report = result(supervisor)
    assert code == full_report.exit_code
    assert (
        text
        == "the coordinator died (killed by SIGKILL); the report was written, but some pictures are missing"
    )
    assert report == full_report == read_report(tmp_path / JSON_NAME)
    assert full_report.run in (tmp_path / MARKDOWN_NAME).read_text(encoding="utf-8")


def test_without_a_report_the_job_was_stopped(supervisor: Supervisor) -> None:
    code, text, report = result(supervisor)
    assert (code, report) == (ExitCode.STOPPED_BY_DEATH, None)
    assert text.startswith("the coordinator died (killed by SIGKILL); no checkpoint was written")


def test_after_ctrl_c_too(supervisor: Supervisor, full_report: Report, tmp_path: Path) -> None:
    body: dict[str, Any] = json.loads(full_report.model_dump_json())
    body |= {"exit_code": int(ExitCode.INTERRUPTED)}
    (tmp_path / JSON_NAME).write_text(json.dumps(body), encoding="utf-8")
    supervisor._interrupts = 2
    code, text, _ = result(supervisor)
    assert code is ExitCode.INTERRUPTED
    assert text.startswith("interrupted; ")
