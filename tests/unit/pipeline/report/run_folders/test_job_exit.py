"""How `shadowsync run` ends, from how its coordinator and its relay did: process, report and hint agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from shadowsync.nodes.supervisor.child import Child
from shadowsync.nodes.supervisor.emulation import Emulation
from shadowsync.nodes.supervisor.job_exit import job_exit
from shadowsync.pipeline.checkpoint.manifest import begin, commit
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.document import EmulatedNetwork, Report
from shadowsync.pipeline.report.run_folders.write import JSON_NAME, MARKDOWN_NAME, read_report
from shadowsync.tests.support.tables.saved_shards import manifest_of_files

from ..conftest import altered

RELAY_DIED = "the relay of the slow network died (killed by SIGKILL)"


class Ended:
    """The coordinator's process, when it has ended."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.exit_code = ExitCode(code) if code >= 0 else ExitCode.STOPPED_BY_DEATH

    def last_line(self) -> str:
        return "it failed"


class DeadRelay:
    """A network whose relay was killed."""

    def failure(self) -> tuple[ExitCode, str]:
        return ExitCode.STOPPED_BY_DEATH, RELAY_DIED

    def report_entry(self) -> EmulatedNetwork | None:
        return None


class NoRelay(DeadRelay):
    """No slow network."""

    def failure(self) -> None:  # type: ignore[override]
        return None


def _exit(
    folder: Path, code: int, network: DeadRelay, *, interrupted: bool = False
) -> tuple[ExitCode, str, Report | None]:
    emulation = cast(Emulation, network)
    return job_exit(cast(Child, Ended(code)), folder, emulation, interrupted=interrupted)


def _write(folder: Path, report: Report, **changes: Any) -> None:
    (folder / JSON_NAME).write_text(altered(report, **changes).model_dump_json(), encoding="utf-8")


INTERRUPTED = {"exit_code": int(ExitCode.INTERRUPTED), "outcome": "interrupted"}
KILLED = -9


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_job_that_its_relay_stopped_says_so_everywhere(
    full_report: Report, tmp_path: Path, *, interrupted: bool
) -> None:
    """The coordinator knows of an interrupt only; it was one if somebody pressed Ctrl-C."""
    _write(tmp_path, full_report, **INTERRUPTED)
    commit(begin(tmp_path), manifest_of_files([]))
    code, text, report = _exit(tmp_path, ExitCode.INTERRUPTED, DeadRelay(), interrupted=interrupted)
    assert report == read_report(tmp_path / JSON_NAME)
    assert report is not None
    assert report.exit_code == code
    if interrupted:
        assert (code, report.outcome, text) == (ExitCode.INTERRUPTED, "interrupted", "it failed")
        return
    assert (code, report.outcome) == (ExitCode.STOPPED_BY_DEATH, f"stopped: {RELAY_DIED}")
    assert text == f"{RELAY_DIED}; continue from its last checkpoint with `shadowsync resume {tmp_path}`"


def test_the_copy_of_the_report_in_a_storage_says_the_same(full_report: Report, tmp_path: Path) -> None:
    run, storage = tmp_path / "run", tmp_path / "storage"
    run.mkdir()
    (run / "job.json").write_text(json.dumps({"run": {"storage": f"file://{storage}"}}))
    _write(run, full_report, **INTERRUPTED)
    code, _, report = _exit(run, ExitCode.INTERRUPTED, DeadRelay())
    assert report == read_report(storage / "run" / JSON_NAME)
    assert report is not None
    assert report.exit_code == code == ExitCode.STOPPED_BY_DEATH
    assert RELAY_DIED in (storage / "run" / "report.md").read_text("utf-8")


def test_a_job_that_had_ended_before_its_relay_did_ends_as_it_says(
    full_report: Report, tmp_path: Path
) -> None:
    _write(tmp_path, full_report)
    code, _, report = _exit(tmp_path, full_report.exit_code, DeadRelay())
    assert code == full_report.exit_code
    assert report == full_report == read_report(tmp_path / JSON_NAME)


def test_the_relay_and_the_coordinator_die(tmp_path: Path) -> None:
    assert _exit(tmp_path, KILLED, DeadRelay()) == (ExitCode.STOPPED_BY_DEATH, RELAY_DIED, None)
    commit(begin(tmp_path), manifest_of_files([]))
    assert "; continue from its last checkpoint with `shadowsync " in _exit(tmp_path, KILLED, DeadRelay())[1]


def test_a_coordinator_that_fails_without_a_report_leaves_a_hint(tmp_path: Path) -> None:
    """A report has said how to go on; what fails has not."""
    assert _exit(tmp_path, ExitCode.INTERNAL, NoRelay()) == (ExitCode.INTERNAL, "it failed", None)
    commit(begin(tmp_path), manifest_of_files([]))
    code, text, _ = _exit(tmp_path, ExitCode.INTERNAL, NoRelay())
    assert code is ExitCode.INTERNAL
    assert text.startswith("it failed; continue from its last checkpoint with `shadowsync resume ")


def test_of_a_coordinator_that_is_killed_the_report_that_is_there_counts(
    full_report: Report, tmp_path: Path
) -> None:
    _write(tmp_path, full_report)
    code, text, report = _exit(tmp_path, KILLED, NoRelay())
    assert code == full_report.exit_code
    assert text == (
        "the coordinator died (killed by SIGKILL); the report was written, but without ne.png, sync_gap.png, "
        "throughput.png"
    )
    assert report == full_report == read_report(tmp_path / JSON_NAME)
    assert full_report.run in (tmp_path / MARKDOWN_NAME).read_text(encoding="utf-8")


def test_only_pictures_that_are_missing_are_named(full_report: Report, tmp_path: Path) -> None:
    def said() -> str:
        return _exit(tmp_path, KILLED, NoRelay())[1]

    _write(tmp_path, full_report)
    (tmp_path / "ne.png").touch()
    assert said().endswith("the report was written, but without sync_gap.png, throughput.png")
    for name in ("sync_gap.png", "throughput.png"):
        (tmp_path / name).touch()
    assert said().endswith("; the report was written")
    for path in tmp_path.glob("*.png"):
        path.unlink()
    _write(tmp_path, full_report, pictures=False)
    assert said().endswith("; the report was written"), "those that were not wanted are not missing"


def test_a_coordinator_that_is_killed_before_it_reports_has_stopped_the_job(tmp_path: Path) -> None:
    code, text, report = _exit(tmp_path, KILLED, NoRelay())
    assert (code, report) == (ExitCode.STOPPED_BY_DEATH, None)
    assert text.startswith("the coordinator died (killed by SIGKILL); no checkpoint was written")


def test_a_coordinator_that_is_killed_after_ctrl_c(full_report: Report, tmp_path: Path) -> None:
    _write(tmp_path, full_report, exit_code=int(ExitCode.INTERRUPTED))
    code, text, _ = _exit(tmp_path, KILLED, NoRelay(), interrupted=True)
    assert code is ExitCode.INTERRUPTED
    assert text.startswith("interrupted; ")
