"""The outcome of a job, from how its coordinator and its relay ended."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from ...pipeline.errors import ExitCode
from ...pipeline.report.model import Report
from ...pipeline.report.run_folder import resume_hint
from ...pipeline.report.write import absent_pictures, read_report, rewrite_texts
from ..runtime.process import exit_status_text
from .launcher import RunningNode
from .network.emulation import Emulation

JobExit: TypeAlias = tuple[ExitCode, str, Report | None]
"""The exit code, one line for the user if it isn't 0, and any report."""


def job_exit(
    coordinator: RunningNode, folder: Path | None, emulation: Emulation, *, interrupted: bool
) -> JobExit:
    """Return the outcome of a job whose coordinator has ended.

    The emulated network is added to the report. `folder` is the run's, None if it has none.
    """
    report = None
    if folder is not None and (folder / "report.json").exists():
        report = read_report(folder / "report.json")
        if (network := emulation.report_entry()) is not None:
            report = report.model_copy(update={"network": network})
            rewrite_texts(folder, report)
    if (relay := emulation.failure()) is not None:
        return *relay, report
    if coordinator.code is not None and coordinator.code < 0:
        return _of_a_death(coordinator.code, folder, report, interrupted=interrupted)
    return coordinator.exit_code, coordinator.last_line(), report


def _of_a_death(code: int, folder: Path | None, report: Report | None, *, interrupted: bool) -> JobExit:
    text = "interrupted" if interrupted else f"the coordinator died ({exit_status_text(code)})"
    if report is not None and folder is not None:
        # The job had ended, and nothing was left to do but to draw it.
        rewrite_texts(folder, report)
        absent = absent_pictures(folder, report)
        text += "; the report was written" + (f", but without {', '.join(absent)}" if absent else "")
        return ExitCode(report.exit_code), text, report
    if folder is not None:
        text += resume_hint(folder) or (
            f"; no checkpoint was written; {folder}/ledger.sqlite records what was trained"
        )
    return ExitCode.INTERRUPTED if interrupted else ExitCode.STOPPED_BY_DEATH, text, None
