"""The report of a run, built from what the coordinator gathered."""

from __future__ import annotations

from collections.abc import Iterable

from ...pipeline.checkpoint.best import BEST
from ...pipeline.config.job import Job
from ...pipeline.errors import ExitCode
from ...pipeline.report.document import (
    Checkpoints,
    Curves,
    Event,
    ExampleCounts,
    LinkTraffic,
    NodeRecord,
    Replicas,
    Report,
    Staleness,
    Sync,
    Throughput,
)
from ...pipeline.report.lateness import Lateness, lateness_of, latest_of
from ...pipeline.report.ledger import Ledger
from ...pipeline.report.merged_work import merges_of
from ...pipeline.report.quality import Train, Validation
from ...pipeline.report.rendering.quality_warnings import (
    FIRST_ITERATIONS,
    averaging_warnings,
    bad_row_warnings,
    first_gap_warnings,
    held_out_warnings,
    late_warnings,
    one_class_warnings,
    warmup_warnings,
)
from ...pipeline.report.run_folders.write import describe_hardware, versions
from ...pipeline.report.tables.disk_rows import disk_rows
from ...pipeline.report.tables.growth import growing_tables, growth_warnings
from ...pipeline.report.tables.placement import LoadedNode, Placement
from ...pipeline.report.tables.sharing import shared_rows, sharing_warnings
from ...pipeline.text.format import counted
from ..control.membership import Member
from .audit import contradicted, examples_of, ledger_of, total
from .evaluation import progressive_report
from .held_out import held_out_quality
from .ledger.store import StoredTotals
from .state.job import JobState
from .state.outcome import CountsByNode, Outcome, SavedCheckpoints


def sync_report(state: JobState, outcome: Outcome, trainers: CountsByNode) -> Sync:
    """Sum the last counts of all trainers, including dead ones.

    Means are over rounds, then over trainers.
    """
    some = [count for count in trainers.values() if count.get("rounds")]
    rounds = total(trainers, "rounds")
    gaps = [int(count.get("gap_max", 0)) for count in trainers.values() if count]
    synced = state.job.sync.algorithm != "none"

    def mean(name: str) -> float | None:
        return sum(float(count.get(name, 0.0)) for count in some) / rounds if rounds else None

    return Sync(
        algorithm=state.job.sync.algorithm,
        mode=state.job.sync.mode if synced else "none",
        optimizer_state=state.job.sync.optimizer_state,
        rounds=rounds,
        incomplete_rounds=total(trainers, "incomplete_rounds"),
        undecided_rounds=total(trainers, "undecided_rounds"),
        # Answers to a dead trainer after its last heartbeat are unknown.
        unanswered_slices=max(
            0, total(outcome.closed.syncs, "applied_slices") - total(trainers, "answered_slices")
        ),
        gap_mean=sum(count.get("gap_sum", 0) / count["rounds"] for count in some) / len(some)
        if some
        else None,
        gap_max=max(gaps) if gaps and synced else None,
        first_rounds={
            name: int(count["first_rounds"])
            for name, count in sorted(trainers.items())
            if "first_rounds" in count and count.get("iterations", 0) >= FIRST_ITERATIONS
        },
        bytes=total(trainers, "sync_sent_bytes") + total(trainers, "sync_received_bytes"),
        seconds_mean=mean("round_seconds"),
        cpu_seconds_mean=mean("round_cpu_seconds"),
        links=_links(state, trainers),
        reference_bytes=_reference_bytes(state, outcome, trainers),
        merges=merges_of(outcome.closed.syncs, state.ledger.trained_examples_of),
        waited_seconds={
            name: lateness.seconds
            for name, lateness in sorted(latest_of(_lateness(trainers)).items())
            if lateness.seconds
        },
    )


def _lateness(nodes: CountsByNode) -> dict[str, dict[str, Lateness]]:
    return {name: lateness_of(counts) for name, counts in nodes.items()}


def _links(state: JobState, trainers: CountsByNode) -> dict[str, LinkTraffic]:
    links = {}
    for way in ("center_up", "center_down", "peers_up", "peers_down"):
        if values := total(trainers, f"{way}_float32_bytes"):
            links[way] = LinkTraffic(
                codec=getattr(state.job.codecs, way),
                bytes=total(trainers, f"{way}_bytes"),
                float32_bytes=values,
            )
    return links


def _reference_bytes(state: JobState, outcome: Outcome, trainers: CountsByNode) -> dict[str, int]:
    syncs = {
        member.info.name: outcome.closed.syncs.get(member.info.name, member.metrics)
        for member in state.members.everyone("sync")
    }
    held = {"trainer": total(trainers, "reference_bytes"), "sync": total(syncs, "reference_bytes")}
    return {role: size for role, size in held.items() if size}


def build_report(
    state: JobState,
    stored: StoredTotals,
    outcome: Outcome,
    eval_files: list[str],
    started_at: str,
    warnings: Iterable[str] = (),
) -> Report:
    """Build the report of a run; its warnings begin with `warnings`."""
    job = state.job
    examples = examples_of(state, stored, outcome)
    ledger = ledger_of(state, stored, outcome, examples)
    trainers = _trainer_counts(state, outcome)
    sync = sync_report(state, outcome, trainers)
    growing = growing_tables(job.tables, _shard_counts(state, outcome))
    readers = state.members.everyone("reader")
    counts = [outcome.drained.readers.get(member.info.name, member.metrics) for member in readers]
    shared = shared_rows(job.hashed_tables, counts)
    tested = held_out_quality(outcome.score, eval_files, job)
    best = held_out_quality(outcome.best_score, eval_files, job)
    code, words = _verdict(state, outcome, ledger)
    return Report(
        run=state.folder.name,
        pictures=job.report.pictures,
        outcome=words,
        exit_code=int(code),
        started_at=started_at,
        wall_seconds=state.seconds(),
        seed=job.run.seed,
        job_digest=job.digest,
        model_saved=outcome.model_saved,
        storage=state.job.run.storage,
        examples=examples,
        throughput=_throughput(state, outcome),
        train=_train(state, outcome),
        eval=best or tested,
        eval_last=tested if best is not None else None,
        validation=_validation(outcome.saved_checkpoints),
        checkpoints=_checkpoints(outcome.saved_checkpoints),
        bad_batches=state.training.bad_batches.report(),
        resumed_from=state.origin.run or None,
        restored_examples=state.ledger.restored_examples,
        sync=sync,
        elp=job.trainer.batch * job.trainer.workers * job.trainer.count,
        precision=_precisions(state),
        staleness=_staleness(job, outcome, trainers),
        replicas=Replicas(divergence=outcome.divergence),
        ledger=ledger,
        warnings=[
            *warnings,
            *_warnings(state, examples, sync),
            *late_warnings(_late(state, outcome, trainers), state.training.metrics.seconds),
            *held_out_warnings(best or tested),
            *growth_warnings(growing),
            *sharing_warnings(shared, job.hashed_tables),
        ],
        events=_events(state, outcome),
        nodes=_nodes(state, outcome),
        placement=_placement(state, outcome),
        growing_tables=growing,
        disk_rows=disk_rows(_shard_counts(state, outcome)),
        shared_rows=shared,
        hardware=describe_hardware(),
        versions=versions(),
        curves=_curves(state, outcome),
    )


def ledger_fault(state: JobState, outcome: Outcome) -> str:
    """Say that the ledger does not add up, and whose counts contradict those of others."""
    names = ", ".join(contradicted(state, outcome))
    text = "the ledger does not add up; report.md says where"
    return text + (f"; the counts of {names} contradict those of the others" if names else "")


def _verdict(state: JobState, outcome: Outcome, ledger: Ledger) -> tuple[ExitCode, str]:
    """Return the exit code and how the run ended, in words."""
    # `lost` has no node that came later and never took part: its death loses nothing.
    died = bool(state.lifecycle.takeovers) or not all(member.left for member in state.members.lost())
    if outcome.stop is not None:
        code = outcome.stop.exit_code
        words = "interrupted" if outcome.stop.kind == "interrupted" else f"stopped: {outcome.stop.text}"
    elif died:
        code, words = ExitCode.FINISHED_WITH_DEATHS, "finished although a node died"
        words = (
            f"finished early: {outcome.training.ended_early}; a node died"
            if outcome.training.ended_early
            else words
        )
    elif outcome.training.ended_early:
        code, words = ExitCode.OK, f"finished early: {outcome.training.ended_early}"
    else:
        code, words = ExitCode.OK, "finished"
    if state.folder_was_removed and outcome.stop is None:
        code = ExitCode.RESOURCES
    if not ledger.adds_up and outcome.stop is None:
        code = ExitCode.LEDGER
    return code, words


def _train(state: JobState, outcome: Outcome) -> Train:
    scored = state.training.input.progressive
    return Train(
        ne_progressive=state.training.metrics.ne_progressive,
        ne_by_label={name: ne for name, (ne, _) in state.training.metrics.ne_by_label.items()},
        progressive=progressive_report(
            outcome.drained.progressive,
            state.ledger.trained_in(scored),
            state.job.data.label_names,
            of_logits=state.job.model.has_logits,
        )
        if scored
        else None,
        rows_warmup_examples=state.job.rows_warmup_examples,
        hours=state.training.metrics.hours(),
    )


def _precisions(state: JobState) -> dict[str, str]:
    return {
        member.info.name: member.facts.precision
        for member in state.members.everyone()
        if member.info.role == "trainer" and member.facts.precision
    }


def _warnings(state: JobState, examples: ExampleCounts, sync: Sync) -> list[str]:
    job = state.job
    return [
        *bad_row_warnings(examples, job.data.epochs),
        *one_class_warnings(state.training.metrics.hours(), needs_negatives=job.model.needs_negatives),
        *first_gap_warnings(job.sync, sync.first_rounds, resumed=bool(state.origin.run)),
        *averaging_warnings(job.sync, job.trainer.count),
        *warmup_warnings(job, examples.trained + state.ledger.restored_examples),
    ]


def _late(state: JobState, outcome: Outcome, trainers: CountsByNode) -> dict[str, Lateness]:
    """Return how late each living trainer was, as sync nodes that merge have it, or the other trainers."""
    living = {trainer.info.name for trainer in state.members.alive("trainer")}
    latest = latest_of(_lateness({**trainers, **outcome.closed.syncs}))
    return {name: lateness for name, lateness in latest.items() if name in living}


def _events(state: JobState, outcome: Outcome) -> list[Event]:
    return [
        *(Event(seconds=seconds, node=node, what=what) for seconds, node, what in state.events),
        *(Event(seconds=state.seconds(), node="coordinator", what=note) for note in outcome.notes),
        *_refused(state),
    ]


def _curves(state: JobState, outcome: Outcome) -> Curves:
    metrics = state.training.metrics
    return Curves(
        ne=metrics.ne_curve(),
        throughput=metrics.throughput_curves(),
        sync_gap=metrics.gap_curves(),
        divergence=list(outcome.training.divergence_curve),
        validation=[(float(score.examples), score.value) for score in state.checkpointing.scored],
    )


def with_exits(report: Report, ended: set[str], others: str | None = None) -> Report:
    """Copy the report, with how each living node ended.

    Those in `ended` ended well; `others` says it of the rest.
    """
    nodes = [
        node
        if node.exit is not None
        else node.model_copy(update={"exit": "0" if node.name in ended else others})
        for node in report.nodes
    ]
    return report.model_copy(update={"nodes": nodes})


def concluded_before(report: Report, state: JobState, ended: set[str]) -> Report:
    """Copy the report that a dead coordinator had decided on.

    Its nodes may have ended before this one could ask them.
    """
    seconds, node, what = state.events[-1]
    events = [*report.events, Event(seconds=seconds, node=node, what=what)]
    exited = with_exits(report, ended, "told to end; the coordinator died before it could confirm")
    return exited.model_copy(update={"events": events})


def _throughput(state: JobState, outcome: Outcome) -> Throughput:
    trained = state.ledger.totals.trained_examples
    cpu = sum(outcome.drained.cpu_seconds.values())
    return Throughput(
        examples_per_second=state.training.metrics.examples_per_second(),
        per_trainer=state.training.metrics.per_trainer(),
        cpu_seconds_per_million=cpu / trained * 1e6 if trained and cpu else None,
        coordinator_cpu_seconds=outcome.drained.cpu_seconds.get("coordinator"),
    )


def _validation(saved: SavedCheckpoints | None) -> Validation | None:
    state = saved.validation if saved is not None else None
    if saved is None or state is None:
        return None
    best = state.best
    return Validation(
        metric=state.settings.metric,
        count=len(state.points),
        failed=state.failed,
        skipped=state.skipped,
        waited_seconds=state.waited_seconds,
        best=None if best is None else best.value,
        best_examples=None if best is None else best.examples,
        best_metrics={} if best is None else best.metrics,
        folder=None if best is None else BEST,
        best_is_last=saved.best_is_last,
    )


def _checkpoints(saved: SavedCheckpoints | None) -> Checkpoints | None:
    if saved is None or not saved.checkpoints + saved.failed_checkpoints:
        return None
    return Checkpoints(written=saved.checkpoints, failed=saved.failed_checkpoints)


def _trainer_counts(state: JobState, outcome: Outcome) -> CountsByNode:
    """Return the counts by trainer, from its last heartbeat if it did not reply."""
    return {
        member.info.name: outcome.trainers.get(member.info.name, member.metrics)
        if member.alive or member.left
        else member.metrics
        for member in state.members.everyone("trainer")
    }


def _staleness(job: Job, outcome: Outcome, trainers: CountsByNode) -> Staleness:
    ahead = {
        name: counts["lookups_ahead"] / job.trainer.workers
        for name, counts in sorted(trainers.items())
        if "lookups_ahead" in counts
    }
    pushes = total(outcome.drained.shards, "staleness_count")
    if not pushes:
        return Staleness(embedding_mean=None, embedding_max=None, lookups_ahead=ahead)
    return Staleness(
        embedding_mean=total(outcome.drained.shards, "staleness_sum") / pushes,
        embedding_max=max(int(reply["staleness_max"]) for reply in outcome.drained.shards.values()),
        lookups_ahead=ahead,
    )


def _placement(state: JobState, outcome: Outcome) -> Placement:
    """Return each embedding node's rows and load.

    If a node did not reply, its load is up to the last heartbeat.
    """
    nodes = []
    counts_by_node = _shard_counts(state, outcome)
    for member in _holders(state):
        rows = counts_by_node[member.info.name].get("looked_up_rows")
        loaded = LoadedNode(
            **state.placement.node(member.info.index).model_dump() | {"name": member.info.name},
            looked_up_rows=None if rows is None else int(rows),
            cpu_seconds=outcome.drained.cpu_seconds.get(member.info.name),
        )
        nodes.append(loaded)
    return Placement(how=state.placement.how, nodes=nodes)


def _holders(state: JobState) -> list[Member]:
    """Return the embedding nodes with the rows.

    A replacement has those of the dead node.
    """
    return list(
        {member.info.index: member for member in state.members.everyone("embedding") if member.begun}.values()
    )


def _shard_counts(state: JobState, outcome: Outcome) -> CountsByNode:
    """Return the counts by embedding node.

    They are from its last heartbeat if it did not reply.
    """
    return {
        member.info.name: outcome.drained.shards.get(member.info.name, member.metrics)
        for member in _holders(state)
    }


def _refused(state: JobState) -> list[Event]:
    """Build events for refused messages and connections."""
    events = []
    if state.refused_messages:
        by_sender = ", ".join(
            f"{count} from {name}" for name, count in sorted(state.refused_messages.items())
        )
        events.append(("coordinator", f"refused messages: {by_sender}; see its log"))
    for member in state.members.everyone():
        if count := member.count("refused_messages"):
            events.append((member.info.name, f"refused {counted(count, 'message')}; see its log"))
    refused = {"coordinator": state.refused_connections}
    refused |= {
        named.info.name: named.count("refused_connections") or 0 for named in state.members.everyone()
    }
    events += [(name, _refused_connections(count)) for name, count in refused.items() if count]
    return [Event(seconds=state.seconds(), node=node, what=what) for node, what in events]


def _refused_connections(count: int) -> str:
    why = "with a wrong key or none, or with too much unfinished"
    return f"refused {counted(count, 'connection')} {why}; see its log"


def _nodes(state: JobState, outcome: Outcome) -> list[NodeRecord]:
    nodes = []
    for member in state.members.everyone():
        nodes.append(
            NodeRecord(
                name=member.info.name,
                role=member.info.role,
                cpu_seconds=outcome.drained.cpu_seconds.get(member.info.name),
                peak_memory_bytes=member.count("peak_memory_bytes"),
                exit=None if member.alive else member.lost_because,
                refused_messages=member.count("refused_messages") or 0,
                refused_connections=member.count("refused_connections") or 0,
            )
        )
    return nodes
