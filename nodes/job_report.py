"""The report of a run, from what the coordinator gathered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..pipeline.data.log_manifest import LogManifest, read_manifest
from ..pipeline.errors import ExitCode
from ..pipeline.metrics.quality import gain_ratio
from ..pipeline.report.hardware import describe_hardware, versions
from ..pipeline.report.model import (
    Curves,
    Evaluation,
    Event,
    LinkTraffic,
    Node,
    Replicas,
    Report,
    Staleness,
    Sync,
    Throughput,
    Train,
)
from .coordinator import Coordinator
from .job_ledger import examples_of, ledger_of, total
from .outcome import Outcome, Score


def build_report(c: Coordinator, outcome: Outcome, eval_files: list[str], started_at: str) -> Report:
    """Everything that report.json states; `exit_code` is what the run ends with."""
    job = c.job
    examples = examples_of(c, outcome)
    ledger = ledger_of(c, outcome, examples)
    died = any(not member.alive for member in c.members.everyone())
    if outcome.stop is not None:
        code = outcome.stop.exit_code
        words = "interrupted" if outcome.stop.kind == "interrupted" else f"stopped: {outcome.stop.text}"
    elif died:
        code, words = ExitCode.FINISHED_WITH_DEATHS, "finished although a node died"
    else:
        code, words = ExitCode.OK, "finished"
    if not ledger.adds_up and outcome.stop is None:
        code = ExitCode.LEDGER
    return Report(
        run=c.folder.name,
        outcome=words,
        exit_code=int(code),
        started_at=started_at,
        wall_seconds=c.seconds(),
        seed=job.run.seed,
        job_digest=job.digest,
        model_saved=outcome.model_saved,
        examples=examples,
        throughput=_throughput(c, outcome),
        train=Train(ne_progressive=c.tally.ne_progressive),
        eval=_evaluation(outcome.score, eval_files),
        sync=_sync(c, outcome),
        elp=job.trainer.batch * job.trainer.workers * job.trainer.count,
        staleness=_staleness(outcome),
        replicas=Replicas(divergence=outcome.divergence),
        ledger=ledger,
        events=[Event(seconds=s, node=node, what=what) for s, node, what in c.events]
        + [Event(seconds=c.seconds(), node="coordinator", what=note) for note in outcome.notes],
        nodes=_nodes(c, outcome),
        hardware=describe_hardware(),
        versions=versions(),
        curves=Curves(
            ne=c.tally.ne_curve(),
            throughput=c.tally.throughput_curves(),
            sync_gap=c.tally.gap_curves(),
            divergence=outcome.divergence_curve,
        ),
    )


def with_exits(report: Report, ended: set[str]) -> Report:
    """The report with the nodes in `ended` noted as ended well."""
    nodes = [
        node.model_copy(update={"exit": "0"}) if node.name in ended and node.exit is None else node
        for node in report.nodes
    ]
    return report.model_copy(update={"nodes": nodes})


def _throughput(c: Coordinator, outcome: Outcome) -> Throughput:
    trained = c.ledger.totals.trained_examples
    cpu = sum(outcome.cpu_seconds.values())
    return Throughput(
        examples_per_second=c.tally.examples_per_second(),
        per_trainer=c.tally.per_trainer(),
        cpu_seconds_per_million=cpu / trained * 1e6 if trained and cpu else None,
    )


def _evaluation(score: Score | None, eval_files: list[str]) -> Evaluation | None:
    """Of one model its sums; of several replicas the mean of their own scores; None if nothing was scored."""
    found = [sums for sums in score.sums if sums.examples] if score is not None else []
    if score is None or not found:
        return None
    teacher = teacher_ne(eval_files)
    ne = _mean([sums.ne for sums in found])
    return Evaluation(
        model=score.model,
        ne=ne,
        auc=_mean([sums.auc for sums in found]),
        auc_error=_mean([sums.auc_error for sums in found]),
        logloss=sum(sums.logloss for sums in found) / len(found),
        calibration=_mean([sums.calibration for sums in found]),
        examples=found[0].examples,
        teacher_ne=teacher,
        gain_ratio=gain_ratio(ne, teacher),
    )


def teacher_ne(files: list[str]) -> float | None:
    """The teacher's NE on these files, if all of them are the evaluation part of one generated log."""
    manifests: list[LogManifest | None] = [read_manifest(path) for path in files]
    known = [manifest for manifest in manifests if manifest is not None]
    if not known or len(known) < len(manifests) or any(m != known[0] for m in known):
        return None
    names = sorted(Path(path).name for path in files)
    for part in (known[0].train, known[0].eval):
        if sorted(file.name for file in part.files) == names:
            return part.teacher_ne
    return None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _sync(c: Coordinator, outcome: Outcome) -> Sync:
    """Means over rounds, then over trainers, as the design's section 4 has them."""
    counts: list[dict[str, Any]] = [member.metrics for member in c.members.everyone("trainer")]
    for member in c.members.alive("trainer"):
        counts[c.members.everyone("trainer").index(member)] = outcome.trainers.get(
            member.info.name, member.metrics
        )
    some = [count for count in counts if count.get("rounds")]
    rounds = sum(int(count["rounds"]) for count in some)
    answered = sum(int(count.get("answered_slices", 0)) for count in counts)
    gaps = [int(count.get("gap_max", 0)) for count in counts if count]
    synced = c.job.sync.algorithm != "none"
    return Sync(
        algorithm=c.job.sync.algorithm,
        mode=c.job.sync.mode if synced else "none",
        rounds=rounds,
        incomplete_rounds=sum(int(count.get("incomplete_rounds", 0)) for count in counts),
        undecided_rounds=sum(int(count.get("undecided_rounds", 0)) for count in counts),
        # Of a trainer that died, answers after its last heartbeat are not known.
        unanswered_slices=max(0, total(outcome.syncs, "applied_slices") - answered),
        gap_mean=sum(count["gap_sum"] / count["rounds"] for count in some) / len(some) if some else None,
        gap_max=max(gaps) if gaps and synced else None,
        bytes=sum(int(m.get("sync_sent_bytes", 0)) + int(m.get("sync_received_bytes", 0)) for m in counts),
        seconds_mean=sum(count["round_seconds"] for count in some) / rounds if rounds else None,
        links=_links(c, counts),
        reference_bytes=_reference_bytes(c, counts, outcome),
    )


def _links(c: Coordinator, counts: list[dict[str, Any]]) -> dict[str, LinkTraffic]:
    links = {}
    for way in ("center_up", "center_down", "peers_up", "peers_down"):
        values = sum(int(count.get(f"{way}_float32_bytes", 0)) for count in counts)
        if values:
            links[way] = LinkTraffic(
                codec=getattr(c.job.codecs, way),
                bytes=sum(int(count.get(f"{way}_bytes", 0)) for count in counts),
                float32_bytes=values,
            )
    return links


def _reference_bytes(c: Coordinator, counts: list[dict[str, Any]], outcome: Outcome) -> dict[str, int]:
    syncs = [outcome.syncs.get(member.info.name, member.metrics) for member in c.members.everyone("sync")]
    held = {
        role: sum(int(count.get("reference_bytes", 0)) for count in by_node)
        for role, by_node in (("trainer", counts), ("sync", syncs))
    }
    return {role: size for role, size in held.items() if size}


def _staleness(outcome: Outcome) -> Staleness:
    pushes = total(outcome.shards, "staleness_count")
    if not pushes:
        return Staleness(embedding_mean=None, embedding_max=None)
    return Staleness(
        embedding_mean=total(outcome.shards, "staleness_sum") / pushes,
        embedding_max=max(int(answer["staleness_max"]) for answer in outcome.shards.values()),
    )


def _nodes(c: Coordinator, outcome: Outcome) -> list[Node]:
    nodes = []
    for member in c.members.everyone():
        metrics = member.metrics
        nodes.append(
            Node(
                name=member.info.name,
                role=member.info.role,
                cpu_seconds=outcome.cpu_seconds.get(member.info.name),
                peak_memory_bytes=metrics.get("peak_memory_bytes"),
                exit=None if member.alive else member.lost_because,
            )
        )
    return nodes
