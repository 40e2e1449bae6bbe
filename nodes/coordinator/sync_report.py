"""The report's figures of synchronization: rounds, gaps, traffic."""

from __future__ import annotations

from ...pipeline.report.model import LinkTraffic, Sync
from .audit import total
from .outcome import Answers, Outcome
from .state import JobState


def sync_report(state: JobState, outcome: Outcome, trainers: Answers) -> Sync:
    """Sum the last counts of all trainers, dead ones included.

    Means are over rounds, then over trainers.
    """
    some = [count for count in trainers.values() if count.get("rounds")]
    rounds = total(trainers, "rounds")
    gaps = [int(count.get("gap_max", 0)) for count in trainers.values() if count]
    synced = state.job.sync.algorithm != "none"
    return Sync(
        algorithm=state.job.sync.algorithm,
        mode=state.job.sync.mode if synced else "none",
        rounds=rounds,
        incomplete_rounds=total(trainers, "incomplete_rounds"),
        undecided_rounds=total(trainers, "undecided_rounds"),
        # Of a trainer that died, answers after its last heartbeat are not known.
        unanswered_slices=max(0, total(outcome.syncs, "applied_slices") - total(trainers, "answered_slices")),
        gap_mean=sum(count["gap_sum"] / count["rounds"] for count in some) / len(some) if some else None,
        gap_max=max(gaps) if gaps and synced else None,
        bytes=total(trainers, "sync_sent_bytes") + total(trainers, "sync_received_bytes"),
        seconds_mean=sum(count["round_seconds"] for count in some) / rounds if rounds else None,
        links=_links(state, trainers),
        reference_bytes=_reference_bytes(state, outcome, trainers),
    )


def _links(state: JobState, trainers: Answers) -> dict[str, LinkTraffic]:
    links = {}
    for way in ("center_up", "center_down", "peers_up", "peers_down"):
        if values := total(trainers, f"{way}_float32_bytes"):
            links[way] = LinkTraffic(
                codec=getattr(state.job.codecs, way),
                bytes=total(trainers, f"{way}_bytes"),
                float32_bytes=values,
            )
    return links


def _reference_bytes(state: JobState, outcome: Outcome, trainers: Answers) -> dict[str, int]:
    syncs = {
        member.info.name: outcome.syncs.get(member.info.name, member.metrics)
        for member in state.members.everyone("sync")
    }
    held = {"trainer": total(trainers, "reference_bytes"), "sync": total(syncs, "reference_bytes")}
    return {role: size for role, size in held.items() if size}
