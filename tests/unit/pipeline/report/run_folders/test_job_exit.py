"""How `shadowsync run` ends, from how its coordinator and its relay did: process, report and hint agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from shadowsync.nodes.supervisor.child import Child
from shadowsync.nodes.supervisor.emulation import Emulation
from shadowsync.nodes.supervisor.job_exit import job_exit
from shadowsync.pipeline.checkpoint.manifest import begin, commit
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.model import EmulatedNetwork, Report
from shadowsync.pipeline.report.run_folders.write import JSON_NAME, read_report
from shadowsync.tests.support.tables.saved_shards import manifest_of_files

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


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_job_that_its_relay_stopped_says_so_everywhere(
    full_report: Report, tmp_path: Path, *, interrupted: bool
) -> None:
    """The coordinator knows of an interrupt only; it was one if somebody pressed Ctrl-C."""
    changes = {"exit_code": int(ExitCode.INTERRUPTED), "outcome": "interrupted"}
    (tmp_path / JSON_NAME).write_text(full_report.model_copy(update=changes).model_dump_json())
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
    changes = {"exit_code": int(ExitCode.INTERRUPTED), "outcome": "interrupted"}
    (run / JSON_NAME).write_text(full_report.model_copy(update=changes).model_dump_json())
    code, _, report = _exit(run, ExitCode.INTERRUPTED, DeadRelay())
    assert report == read_report(storage / "run" / JSON_NAME)
    assert report is not None
    assert report.exit_code == code == ExitCode.STOPPED_BY_DEATH
    assert RELAY_DIED in (storage / "run" / "report.md").read_text("utf-8")


def test_a_job_that_had_ended_before_its_relay_did_ends_as_it_says(
    full_report: Report, tmp_path: Path
) -> None:
    (tmp_path / JSON_NAME).write_text(full_report.model_dump_json())
    code, _, report = _exit(tmp_path, full_report.exit_code, DeadRelay())
    assert code == full_report.exit_code
    assert report == full_report == read_report(tmp_path / JSON_NAME)


def test_the_relay_and_the_coordinator_die(tmp_path: Path) -> None:
    assert _exit(tmp_path, -9, DeadRelay()) == (ExitCode.STOPPED_BY_DEATH, RELAY_DIED, None)
    commit(begin(tmp_path), manifest_of_files([]))
    assert "; continue from its last checkpoint with `shadowsync " in _exit(tmp_path, -9, DeadRelay())[1]


def test_a_coordinator_that_fails_without_a_report_leaves_a_hint(tmp_path: Path) -> None:
    """A report has said how to go on; what fails has not."""
    assert _exit(tmp_path, ExitCode.INTERNAL, NoRelay()) == (ExitCode.INTERNAL, "it failed", None)
    commit(begin(tmp_path), manifest_of_files([]))
    code, text, _ = _exit(tmp_path, ExitCode.INTERNAL, NoRelay())
    assert code is ExitCode.INTERNAL
    assert text.startswith("it failed; continue from its last checkpoint with `shadowsync resume ")
