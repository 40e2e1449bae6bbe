"""A coordinator that is killed when the job has ended: the report is what the job did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from shadowsync.nodes.supervisor.child import Child
from shadowsync.nodes.supervisor.emulation import Emulation
from shadowsync.nodes.supervisor.job_exit import JobExit, job_exit
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.model import Report
from shadowsync.pipeline.report.run_folders.write import JSON_NAME, MARKDOWN_NAME, read_report

KILLED = -9


class Killed:
    """The coordinator's process, of which nothing is left but its exit."""

    code = KILLED


def outcome(folder: Path, *, interrupted: bool = False) -> JobExit:
    job = Job.model_validate({"data": {"format": "criteo_tsv", "path": ["part.tsv"]}})
    return job_exit(cast(Child, Killed()), folder, Emulation(job), interrupted=interrupted)


def test_the_report_that_is_there_counts(full_report: Report, tmp_path: Path) -> None:
    (tmp_path / JSON_NAME).write_text(full_report.model_dump_json(), encoding="utf-8")
    code, text, report = outcome(tmp_path)
    assert code == full_report.exit_code
    assert text == (
        "the coordinator died (killed by SIGKILL); the report was written, but without ne.png, sync_gap.png, "
        "throughput.png"
    )
    assert report == full_report == read_report(tmp_path / JSON_NAME)
    assert full_report.run in (tmp_path / MARKDOWN_NAME).read_text(encoding="utf-8")


def test_only_pictures_that_are_missing_are_named(full_report: Report, tmp_path: Path) -> None:
    (tmp_path / JSON_NAME).write_text(full_report.model_dump_json(), encoding="utf-8")
    (tmp_path / "ne.png").touch()
    assert outcome(tmp_path)[1].endswith("the report was written, but without sync_gap.png, throughput.png")
    for name in ("sync_gap.png", "throughput.png"):
        (tmp_path / name).touch()
    assert outcome(tmp_path)[1].endswith("; the report was written")


def test_pictures_that_were_not_wanted_are_not_missing(full_report: Report, tmp_path: Path) -> None:
    plain = full_report.model_copy(update={"pictures": False})
    (tmp_path / JSON_NAME).write_text(plain.model_dump_json(), encoding="utf-8")
    assert outcome(tmp_path)[1].endswith("; the report was written")


def test_without_a_report_the_job_was_stopped(tmp_path: Path) -> None:
    code, text, report = outcome(tmp_path)
    assert (code, report) == (ExitCode.STOPPED_BY_DEATH, None)
    assert text.startswith("the coordinator died (killed by SIGKILL); no checkpoint was written")


def test_after_ctrl_c_too(full_report: Report, tmp_path: Path) -> None:
    body: dict[str, Any] = json.loads(full_report.model_dump_json())
    body |= {"exit_code": int(ExitCode.INTERRUPTED)}
    (tmp_path / JSON_NAME).write_text(json.dumps(body), encoding="utf-8")
    code, text, _ = outcome(tmp_path, interrupted=True)
    assert code is ExitCode.INTERRUPTED
    assert text.startswith("interrupted; ")
