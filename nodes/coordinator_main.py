"""The coordinator's process: plans the spans, leads the job, writes the report. Imports no torch."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from pathlib import Path

from ..pipeline.data.schema import FeatureShape
from ..pipeline.data.spans import Span, plan_spans
from ..pipeline.errors import DataError, ExitCode
from ..pipeline.report.model import Report
from ..pipeline.report.run_folder import create_run_folder, point_latest
from ..pipeline.report.write import write_report
from .conductor import Conductor
from .coordinator import Coordinator
from .job_report import build_report, with_exits
from .ledger_state import LedgerState
from .ledger_store import LedgerStore
from .logs import log_to_folder
from .outcome import Outcome
from .settings import NodeSettings

log = logging.getLogger(__name__)

LEDGER_FILE = "ledger.sqlite"


def make_run_folder(settings: NodeSettings) -> Path:
    """The run's folder with the resolved job file in it; `latest` points to it."""
    root = Path(settings.job.run.directory)
    folder = settings.folder or create_run_folder(root, settings.job.run.name)
    (folder / "job.json").write_text(settings.job.model_dump_json(indent=1) + "\n", encoding="utf-8")
    point_latest(folder.parent, folder)
    return folder


def plan_input(settings: NodeSettings) -> tuple[list[Span], list[Span]]:
    """The spans of training and evaluation; raises DataError for files that cannot be used."""
    job = settings.job
    data = job.data
    shape = FeatureShape(data.dense_features, data.categorical_features, job.table_rows)
    train = plan_spans(data.path, data.format, data.span_bytes, shape)
    held_out = plan_spans(data.eval_path, data.format, data.span_bytes, shape) if data.eval_path else []
    return train, held_out


async def run_coordinator(settings: NodeSettings) -> tuple[ExitCode, str, Report | None]:
    """The whole life of the coordinator: the exit code, one line for the user, and the report."""
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    job = settings.job
    spans, eval_spans = await asyncio.to_thread(plan_input, settings)
    folder = make_run_folder(settings)
    log_to_folder(folder, "coordinator")
    shuffled = job.data.shuffle_window > 0
    ledger = LedgerState(spans, epochs=job.data.epochs, seed=job.run.seed, shuffled=shuffled)
    store = LedgerStore(folder / LEDGER_FILE)
    coordinator = Coordinator(settings, folder, ledger, store)
    try:
        endpoint = coordinator.listen()
        coordinator.start()
        _announce(settings, endpoint, folder)
        conductor = Conductor(coordinator, eval_spans)
        outcome = await conductor.run()
        eval_files = list(dict.fromkeys(span.path for span in eval_spans))
        code, text, report = _conclude(coordinator, outcome, eval_files, started_at)
        ended = await conductor.finish(code, text)
        if report is not None:
            report = with_exits(report, ended)
            await asyncio.to_thread(write_report, folder, report)
        return code, text, report
    finally:
        await coordinator.close()
        store.close()


def _conclude(
    coordinator: Coordinator, outcome: Outcome, eval_files: list[str], started_at: str
) -> tuple[ExitCode, str, Report | None]:
    stop = outcome.stop
    if not coordinator.members.started:
        assert stop is not None
        return stop.exit_code, stop.text, None
    if stop is None and coordinator.ledger.totals.trained_examples == 0:
        error = DataError(
            "no example could be read from the input",
            where=", ".join(coordinator.job.data.path),
            remedy="give files with at least one good row",
        )
        return error.exit_code, str(error), None
    report = build_report(coordinator, outcome, eval_files, started_at)
    text = "" if report.outcome == "finished" else report.outcome
    if not report.ledger.adds_up and stop is None:
        text = "the ledger does not add up; report.md says where"
    return ExitCode(report.exit_code), text, report


def _announce(settings: NodeSettings, endpoint: str, folder: Path) -> None:
    """Tells where to join: in the run's folder, and in the file that the supervisor watches."""
    note = json.dumps({"endpoint": endpoint, "folder": str(folder)})
    for path in (folder / "coordinator.json", settings.announce):
        if path is not None:
            partial = path.with_suffix(".partial")
            partial.write_text(note, encoding="utf-8")
            partial.replace(path)
    if not settings.supervised:
        print(f"join with: --join {endpoint}", flush=True)
