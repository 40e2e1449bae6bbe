"""The coordinator's process: plans the spans, leads the job, writes the report.

Imports no torch.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ...pipeline.atomic_file import write_text
from ...pipeline.checkpoint.run_checkpoints import RunCheckpoints
from ...pipeline.checkpoint.store.contract import StorageError
from ...pipeline.config.job import Job
from ...pipeline.data.files.kafka_client import require_topics_usable
from ...pipeline.data.span import Span
from ...pipeline.errors import CheckpointError, DataError, ExitCode, JobFileError, ResourceError
from ...pipeline.input.plan import InputPlan, KnownInput, plan_input
from ...pipeline.jobfile.ineffective import job_warnings
from ...pipeline.jobfile.named_code import code_of, note_named_code
from ...pipeline.performance.render import write_profile
from ...pipeline.report.document import Report
from ...pipeline.report.run_folders.run_folder import (
    ADDRESS_FILE,
    create_run_folder,
    hint_of_silent,
    point_latest,
    resume_hint,
    write_address,
)
from ...pipeline.report.run_folders.write import write_report
from ...pipeline.retrieval.items import items_of_files
from ...pipeline.text import wall_clock
from ...pipeline.text.format import counted
from ...pipeline.types import TRAINING_ITEMS
from ...pipeline.wire.segment import running_kernel
from ..control.monitoring import Monitoring
from ..control.progress import InputFacts, InputSize
from ..runtime.process import ProcessHooks
from ..runtime.settings import NodeSettings, insecurities
from .checkpoint.claim import claim_storage, take_over_storage, with_start_of
from .checkpoint.resume import RestoredRun, known_input
from .controller import JobController
from .input.label_rate import lacks_label_rates, sampled_label_rates
from .input.planning import estimate_input, place_tables
from .ledger.ledger import LedgerState
from .ledger.store import LedgerStore, LedgerWriter, StoredTotals
from .monitoring.status import build_status
from .recovery.takeover import Takeover
from .report import build_report, concluded_before, ledger_fault, with_exits
from .requests import RequestHandler
from .server import CoordinatorServer
from .state.changes import CoordinatorReplaced, JobBegan, JobConcluded, JobPlanned, SpansAdded
from .state.job import JobState
from .state.outcome import FOLDER_REMOVED, Conclusion, Outcome
from .state.placement import TablePlacement

log = logging.getLogger(__name__)

LEDGER_FILE = "ledger.sqlite"
NO_CHECKPOINT = "; it has written no checkpoint to continue from: start it again as before"


def make_run_folder(settings: NodeSettings) -> Path:
    """Create the run's folder with the resolved job file, and point `latest` to it.

    Raises as `create_run_folder`, and ResourceError if the folder cannot be written to.
    """
    root = Path(settings.job.run.directory)
    folder = settings.folder or create_run_folder(root, settings.job.run.name)
    write_text(folder / "job.json", settings.job.model_dump_json(indent=1) + "\n")
    point_latest(folder.parent, folder)
    return folder


def make_ledger(settings: NodeSettings, spans: Sequence[Span], restored: RestoredRun | None) -> LedgerState:
    """Make the job's ledger.

    Raises JobFileError for a resumed run with nothing left to train.
    """
    job = settings.job
    ledger = LedgerState(
        spans,
        epochs=job.data.epochs,
        seed=job.run.seed,
        shuffled=job.data.spans_shuffled,
        follows=job.data.follow,
        restored=restored.ledger if restored is not None else None,
    )
    if restored is not None and ledger.complete:
        raise JobFileError(
            f"{restored.manifest.run} has trained all of its input, {ledger.restored_examples:,} examples",
            remedy="raise data.epochs to train further, for example --set data.epochs="
            f"{job.data.epochs + 1}; or start a new run from it, with start.checkpoint",
        )
    return ledger


def _require_torch_for_validation(job: Job) -> None:
    """Raise JobFileError if validation needs a scoring process here and torch is missing.

    The coordinator itself needs no torch.
    """
    split = job.data.split
    by_one_process = job.data.has_held_out and (job.retrieval is not None or job.validation.own)
    has_data = job.data.validation_path or split.has_validation or by_one_process
    if (job.validation.enabled or has_data) and find_spec("torch") is None:
        raise JobFileError(
            "the job has validation data, but there is no torch on the coordinator's machine to score with",
            remedy="install torch there, use the image for all roles, or remove the data and [validation]",
        )


def _require_catalogue(job: Job, plan: InputPlan) -> None:
    """Raise DataError for a file of items that validations could not use."""
    retrieval = job.retrieval
    if retrieval is not None and retrieval.items != TRAINING_ITEMS:
        items_of_files(job, plan.id_classes, [retrieval.items])


async def run_coordinator(
    settings: NodeSettings, process: ProcessHooks | None = None
) -> tuple[ExitCode, str, Report | None]:
    """Run the coordinator to its end.

    Returns the exit code, one line for the user, and the report. `process` has hooks into the process around
    it; by default the coordinator has a process of its own.
    """
    process = process or ProcessHooks()
    job = settings.job
    note_named_code(code_of(job).values())
    _require_torch_for_validation(job)
    await asyncio.to_thread(require_topics_usable, job.data)
    takeover = None
    if settings.recover is not None:
        takeover = await asyncio.to_thread(Takeover.open, settings.recover, LEDGER_FILE)
    plan = await asyncio.to_thread(_plan, job, takeover)
    if job.validation.enabled and not plan.validation:
        raise JobFileError(
            "[validation] is set, but the job has no data for it",
            remedy="set data.validation_path, or data.split.validation for a part of data.path",
        )
    await asyncio.to_thread(_require_catalogue, job, plan)
    state, store, restored = await make_state(settings, plan, takeover)
    process.log_to(state.folder, "coordinator")
    for warning in job_warnings(job):
        log.warning("%s", warning)
    server = CoordinatorServer(settings, state, store, process)
    watching = Monitoring(server, partial(build_status, state))
    async with AsyncExitStack() as ending:
        # On the stack, so that each is closed even if closing another one fails or is cancelled.
        for end in (store.close, watching.close, server.close):
            ending.push_async_callback(end)
        endpoint = await _listen(server, plan, takeover, restored)
        watching.open()
        requests = RequestHandler(server)
        server.start(requests.handle, requests.died, takeover.replies if takeover is not None else {})
        if (
            takeover is not None
            and state.lifecycle.training_began is not None
            and state.lifecycle.conclusion is None
        ):
            requests.take_over()
        server.spawn(watching.run())
        _announce(settings, endpoint, state.folder, state.page)
        controller = JobController(
            server, plan.test, plan.validation, requests.start.admit_waiting, plan.train
        )
        if state.lifecycle.conclusion is not None:
            return await _finish(controller, server, state.lifecycle.conclusion, took_over=True)
        outcome = await controller.run()
        unwritten = await _write_profile(state.folder, outcome)
        totals = await store.run(LedgerStore.totals)
        conclusion = await _conclusion(server, totals, outcome, plan)
        ended = await _finish(controller, server, conclusion, took_over=False)
        watching.evaluated(ended[2])
        if unwritten is not None:
            raise unwritten
        return ended


async def _write_profile(folder: Path, outcome: Outcome) -> ResourceError | None:
    """Write the profile, if there is one; return why it could not be written.

    Before the end is decided, since a coordinator that takes over then has nothing to write it from.
    """
    try:
        if (profile := outcome.training.profile) is not None:
            await asyncio.to_thread(write_profile, folder, *profile)
    except ResourceError as error:
        # First the nodes are told to end.
        return error
    return None


def _plan(job: Job, takeover: Takeover | None) -> InputPlan:
    """Return the plan of the input, which stays that of the job's start."""
    if takeover is None:
        return plan_input(job, known_input(job))
    if (planned := takeover.planned) is None:
        # A journal of before 2026-12-01, which has the spans of an input that is followed.
        return plan_input(job, KnownInput([], others=False) if job.data.follow else known_input(job))
    return InputPlan(
        [*planned.train],
        [*planned.validation],
        [*planned.test],
        frozenset(planned.progressive),
        planned.id_classes,
    )


def _planned(job: Job, plan: InputPlan, restored: RestoredRun | None) -> JobPlanned:
    """Return what another coordinator must know of the plan."""
    return JobPlanned(
        () if job.data.follow else tuple(plan.train),
        tuple(plan.validation),
        tuple(plan.test),
        tuple(sorted(plan.progressive)),
        dict(plan.id_classes),
        restored.manifest.digest if restored is not None else "",
    )


async def _conclusion(
    server: CoordinatorServer, totals: StoredTotals, outcome: Outcome, plan: InputPlan
) -> Conclusion:
    """Decide how the job ends, and record it.

    A coordinator that takes over later knows by it that no node is to be waited for.
    """
    eval_files = list(dict.fromkeys(span.path for span in plan.test))
    hint = await _resume_hint(server) if outcome.stop is not None else ""
    code, text, report = _conclude(server, totals, outcome, eval_files, hint)
    conclusion = Conclusion(code, text, report.model_dump_json() if report is not None else "")
    server.state.lifecycle.conclude(conclusion)
    # A full disk does not change the end, and is the server's to report.
    await asyncio.wait({server.journal.decided(JobConcluded(conclusion))})
    return conclusion


async def _finish(
    controller: JobController, server: CoordinatorServer, conclusion: Conclusion, *, took_over: bool
) -> tuple[ExitCode, str, Report | None]:
    """Tell the nodes to end, and write the report."""
    folder, code, text = server.state.folder, conclusion.exit_code, conclusion.text
    ended = await controller.finish(code, text)
    checkpoints, calls = server.state.checkpoints, server.checkpoint_calls
    # Removes an abandoned checkpoint: no node writes any more.
    await calls.clean_up(checkpoints.sweep)
    report = None
    if conclusion.report:
        report = Report.model_validate_json(conclusion.report)
        report = concluded_before(report, server.state, ended) if took_over else with_exits(report, ended)
        await asyncio.to_thread(write_report, folder, report)
        await calls.clean_up(partial(checkpoints.keep_report, folder))
    # Last: another coordinator that still takes over needs the checkpoint that the job resumed.
    await calls.clean_up(checkpoints.end)
    return code, text, report


async def make_state(
    settings: NodeSettings, plan: InputPlan, takeover: Takeover | None
) -> tuple[JobState, LedgerWriter, RestoredRun | None]:
    """Create the job's state and ledger.

    To take over from a dead coordinator, its journal is still to be replayed.
    """
    job = settings.job
    if takeover is None or takeover.planned is None:
        compared = None if takeover is not None and job.data.follow else plan.train
        restored = await asyncio.to_thread(RestoredRun.open, job, compared)
    else:
        restored = await asyncio.to_thread(restored_before, job, takeover.planned.resumes)
    ledger = make_ledger(settings, plan.train, restored)
    data = job.data
    size = InputSize.unknown()
    if not data.follow:
        size = await asyncio.to_thread(
            estimate_input, plan.train, data.epochs, data.split, data.negative_share
        )
    facts = InputFacts(size, plan.progressive, plan.id_classes)
    origin = restored.origin() if restored is not None else None

    def state_in(
        folder: Path,
        placement: TablePlacement,
        clock: Callable[[], float],
        label_rates: tuple[float, ...],
        grant_key: str,
        checkpoints: RunCheckpoints | None,
    ) -> JobState:
        return JobState(
            job,
            folder,
            ledger,
            placement,
            absolute_folder=folder.resolve(),
            checkpoints=checkpoints,
            input_facts=replace(facts, label_rates=label_rates, grant_key=grant_key),
            origin=origin,
            clock=clock,
        )

    if takeover is not None:
        placement = TablePlacement.of_before(job, takeover.began.plan, takeover.began.how)
        stored = await asyncio.to_thread(take_over_storage, job, restored)
        began = takeover.began
        state = state_in(
            takeover.folder, placement, takeover.clock, began.label_rates, began.grant_key, stored
        )
        return state, LedgerWriter(takeover.store), restored
    saved_plan = restored.plan if restored is not None else None
    # If the input was followed, the files of complete spans may be gone.
    complete = restored.ledger.complete if restored is not None else {}
    spans = [span for span in plan.train if (0, span.number) not in complete] or plan.train
    placement = await asyncio.to_thread(place_tables, job, spans, saved_plan)
    rates = () if restored is not None else await asyncio.to_thread(sampled_label_rates, job, spans)
    stored = await asyncio.to_thread(claim_storage, job, restored)
    folder = make_run_folder(settings)
    placement.record().write(folder)
    store = await asyncio.to_thread(LedgerStore, folder / LEDGER_FILE)
    state = state_in(folder, placement, time.monotonic, rates, secrets.token_hex(), stored)
    return state, LedgerWriter(store), restored


def restored_before(job: Job, resumes: str) -> RestoredRun | None:
    """Open the checkpoint, of this digest, that a dead coordinator's job resumed; None for "".

    Raises as `RestoredRun.open`, and CheckpointError if another one is in its place.
    """
    if not resumes:
        return None
    restored = RestoredRun.open(with_start_of(job, resumes), None)
    if restored is not None and restored.manifest.digest != resumes:
        raise CheckpointError(
            "is no more the checkpoint that the job resumed, so its coordinator cannot be replaced",
            where=str(restored.folder),
            remedy="continue the job from its own last checkpoint with `shadowsync resume`",
        )
    return restored


async def _listen(
    server: CoordinatorServer, plan: InputPlan, takeover: Takeover | None, restored: RestoredRun | None
) -> str:
    """Start listening, and replay a dead coordinator's journal; return the endpoint to join."""
    state = server.state
    if takeover is not None:
        # First: nodes wait longer for a coordinator that is silent than for one that is gone.
        endpoint = server.listen(takeover.began.bound)
        await asyncio.to_thread(takeover.replay, state)
        state.lifecycle.replace_coordinator()
        await server.journal.decided(CoordinatorReplaced())
        trained = counted(state.ledger.totals.distinct_batches, "trained batch", "trained batches")
        server.event("coordinator", f"died; another one took over after {trained}")
        return endpoint
    endpoint = server.listen()
    placed = state.placement
    began = JobBegan(
        wall_clock.unix_seconds() - state.seconds(),
        server.bound,
        placed.plan.to_body(),
        placed.how,
        state.training.input.label_rates,
        running_kernel(),
        time.monotonic() - state.seconds(),
        state.training.input.grant_key,
    )
    server.journal.decided(began)
    await server.journal.decided(_planned(state.job, plan, restored))
    if state.job.data.follow:
        spans = state.ledger.queue.spans
        await server.journal.decided(SpansAdded(spans, dict(state.training.input.id_classes)))
    if restored is not None:
        saved = restored.ledger
        await server.store.run(lambda store: store.restored(saved))
        server.event("coordinator", restored.event())
    elif lacks_label_rates(state.job, state.ledger.queue.spans, state.training.input.label_rates):
        server.event("coordinator", "the output bias is drawn at random: no row could be sampled in time")
    return endpoint


async def _resume_hint(server: CoordinatorServer) -> str:
    state, storage, supervised = server.state, server.state.job.run.storage, server.settings.supervised
    try:
        return await server.checkpoint_calls.run(resume_hint, state.folder, storage, supervised=supervised)
    except StorageError:
        return hint_of_silent(storage, supervised=supervised)


def _conclude(
    server: CoordinatorServer, stored: StoredTotals, outcome: Outcome, eval_files: list[str], hint: str
) -> tuple[ExitCode, str, Report | None]:
    state, stop = server.state, outcome.stop
    if not state.members.started:
        assert stop is not None
        return stop.exit_code, stop.text, None
    # In a resumed run, all remaining batches may turn out to be trained.
    if stop is None and state.ledger.examples_so_far == 0:
        error = DataError(
            "no example could be read from the input",
            where=", ".join(state.job.data.path),
            remedy="give files with at least one good row",
        )
        return error.exit_code, str(error), None
    warnings = [*insecurities(server.settings), *job_warnings(state.job)]
    began = wall_clock.now() - timedelta(seconds=state.seconds())
    started_at = began.isoformat(timespec="seconds")
    report = build_report(state, stored, outcome, eval_files, started_at, warnings)
    text = "" if report.exit_code == ExitCode.OK else report.outcome
    if stop is not None:
        text += f"; {outcome.older_checkpoint}" if outcome.older_checkpoint else ""
        text += hint or NO_CHECKPOINT
    if state.folder_was_removed:
        text = f"{report.outcome}; {FOLDER_REMOVED}"
    if not report.ledger.adds_up and stop is None:
        text = ledger_fault(state, outcome)
    return ExitCode(report.exit_code), text, report


def _announce(settings: NodeSettings, endpoint: str, folder: Path, page: str) -> None:
    """Write the address to join into the run's folder and the supervisor's file."""
    for path in (folder / ADDRESS_FILE, settings.announce):
        if path is not None:
            write_address(path, endpoint, folder)
    if not settings.supervised:
        print(f"join with: --join {endpoint}", flush=True)
        if page:
            print(f"page: {page}", flush=True)
