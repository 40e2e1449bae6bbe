"""Options of nodes that the engine of a cluster starts and starts again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.nodes import launch
from shadowsync.nodes.coordinator import main as coordinator_main
from shadowsync.nodes.coordinator.ledger.records import JournalEntry
from shadowsync.nodes.coordinator.ledger.store import LedgerStore
from shadowsync.nodes.coordinator.state.changes import JobBegan
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.wire.field_checks import values_of


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.toml"
    file.write_text(
        f"""[run]
directory = "{tmp_path / "runs"}"
[data]
format = "parquet"
path = "x.parquet"
[model]
table_rows = 10
"""
    )
    return file


@pytest.fixture
def recovered(monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """The run that each coordinator was to take over; none of them does more."""
    found = list[Path | None]()

    async def ends(settings: NodeSettings) -> tuple[ExitCode, str, None]:
        found.append(settings.recover)
        return ExitCode.FINISHED_WITH_DEATHS, "", None

    monkeypatch.setattr(coordinator_main, "run_coordinator", ends)
    return found


def begin(run: Path) -> None:
    """Leave what a coordinator that has begun leaves."""
    store = LedgerStore(run / "ledger.sqlite")
    began = msgpack.packb(values_of(JobBegan(0.0, "ipc://here", {}, "rows")))
    store.journal(JournalEntry(0.0, "", 0, JobBegan.__name__, began))
    store.close()


def exit_code(*arguments: str) -> int:
    return CliRunner().invoke(main, [*arguments]).exit_code


def test_a_restartable_coordinator_takes_over_what_has_not_ended(
    job_file: Path, recovered: list[Path | None]
) -> None:
    run = job_file.parent / "runs" / "job"
    exit_code("coordinator", str(job_file), "--restartable")
    run.mkdir(parents=True)
    exit_code("coordinator", str(job_file), "--restartable")
    begin(run)
    exit_code("coordinator", str(job_file), "--restartable")
    exit_code("coordinator", str(job_file))
    (run / "report.json").touch()
    exit_code("coordinator", str(job_file), "--restartable")
    assert recovered == [None, None, run, None, None]
    # A second run of the job, which may be killed, too.
    again = run.with_name("job-2")
    again.mkdir()
    begin(again)
    exit_code("coordinator", str(job_file), "--restartable")
    (again / "report.json").touch()
    exit_code("coordinator", str(job_file), "--restartable")
    assert recovered[5:] == [again, None]


@pytest.mark.parametrize("whole", [False, True])
def test_one_that_was_killed_before_it_had_begun_is_started_anew(
    job_file: Path, recovered: list[Path | None], whole: bool
) -> None:
    """Its ledger has no journal, perhaps no tables yet: there is nothing to take over."""
    run = job_file.parent / "runs" / "job"
    run.mkdir(parents=True)
    if whole:
        LedgerStore(run / "ledger.sqlite").close()
    else:
        (run / "ledger.sqlite").touch()
    exit_code("coordinator", str(job_file), "--restartable")
    assert recovered == [None]


def test_a_code_is_told_as_success_if_it_is_named(
    job_file: Path, recovered: list[Path | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*_: Any) -> tuple[ExitCode, str]:
        return ExitCode.FINISHED_WITH_DEATHS, ""

    monkeypatch.setattr(launch, "run_node", ends)
    for command in (("coordinator",), ("reader", "--join", "tcp://x:1")):
        own = [*command, str(job_file)]
        assert exit_code(*own) == ExitCode.FINISHED_WITH_DEATHS
        assert exit_code(*own, "--exit-zero-on", "5") == 0
        assert exit_code(*own, "--exit-zero-on", "6") == ExitCode.FINISHED_WITH_DEATHS
        assert exit_code(*own, "--exit-zero-on", "6", "--exit-zero-on", "5") == 0
    assert len(recovered) == 4
