"""The outcome of a job, from how its coordinator and its relay ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from ...pipeline.errors import ExitCode
from ...pipeline.report.document import Report
from ...pipeline.report.run_folders.run_folder import keep_report, resume_hint
from ...pipeline.report.run_folders.write import absent_pictures, read_report, rewrite_texts
from ..runtime.process import exit_status_text
from .emulation import Emulation
from .launcher import RunningNode

JobExit: TypeAlias = tuple[ExitCode, str, Report | None]
"""The exit code, one line for the user if it isn't 0, and any report."""


def job_exit(
    coordinator: RunningNode, folder: Path | None, emulation: Emulation, *, interrupted: bool
) -> JobExit:
    """Return the outcome of a job whose coordinator has ended.

    The emulated network is added to the report. `folder` is the run's, None if it has none.
    """
    report = None
    relay = None if interrupted else emulation.failure()
    if folder is not None and (folder / "report.json").exists():
        report = read_report(folder / "report.json")
        if report.exit_code != ExitCode.INTERRUPTED:
            # The job had ended before the relay did.
            relay = None
        report = _completed(folder, report, emulation, relay)
    hint = resume_hint(folder) if folder is not None and (report is None or relay is not None) else ""
    if relay is not None:
        return relay[0], relay[1] + hint, report
    if coordinator.code is not None and coordinator.code < 0:
        return _of_a_death(coordinator.code, folder, report, hint, interrupted=interrupted)
    text = coordinator.last_line()
    # A coordinator that wrote a report has said how to go on.
    return coordinator.exit_code, text + (hint if report is None and coordinator.code else ""), report


def _completed(
    folder: Path, report: Report, emulation: Emulation, relay: tuple[ExitCode, str] | None
) -> Report:
    """Add to the report what only the supervisor knows, also on disk.

    `relay` says how the relay died, if the supervisor interrupted the job for it.
    """
    changes: dict[str, Any] = {}
    if (network := emulation.report_entry()) is not None:
        changes["network"] = network
    if relay is not None:
        changes |= {"exit_code": int(relay[0]), "outcome": f"stopped: {relay[1]}"}
    if changes:
        report = report.model_copy(update=changes)
        rewrite_texts(folder, report)
        keep_report(folder)
    return report


def _of_a_death(
    code: int, folder: Path | None, report: Report | None, hint: str, *, interrupted: bool
) -> JobExit:
    text = "interrupted" if interrupted else f"the coordinator died ({exit_status_text(code)})"
    if report is not None and folder is not None:
        # The job had ended, and nothing was left to do but to draw it.
        rewrite_texts(folder, report)
        absent = absent_pictures(folder, report)
        text += "; the report was written" + (f", but without {', '.join(absent)}" if absent else "")
        return ExitCode(report.exit_code), text, report
    if folder is not None:
        text += hint or (f"; no checkpoint was written; {folder}/ledger.sqlite records what was trained")
    return ExitCode.INTERRUPTED if interrupted else ExitCode.STOPPED_BY_DEATH, text, None
