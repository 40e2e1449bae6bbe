"""The books of a run at its end: each term counted in another process, so that a lost or doubled message
makes them not add up."""

from __future__ import annotations

from typing import Any

from ..pipeline.report.model import Examples, Identity, Ledger
from .coordinator import Coordinator
from .membership_state import Member
from .outcome import Outcome


def total(answers: dict[str, dict[str, Any]], key: str) -> int:
    """The sum of one count over nodes."""
    return sum(int(answer.get(key, 0)) for answer in answers.values())


def examples_of(c: Coordinator, outcome: Outcome) -> Examples:
    """Where the examples went. `read` is the readers' count, `in_flight` the trainers', the rest the
    coordinator's."""
    totals = c.ledger.totals
    dropped = totals.returned_examples - c.store.returned_and_trained_examples()
    reasons = {"malformed rows": totals.bad_rows} if totals.bad_rows else {}
    if dropped > 0:
        reasons["returned by a dead trainer, and the job stopped before they were trained again"] = dropped
    return Examples(
        read=total(outcome.readers, "read_examples")
        + sum(int(member.metrics.get("read_examples", 0)) for member in _dead(c, "reader")),
        distinct=totals.distinct_examples,
        trained=totals.trained_examples,
        replayed=totals.replayed_examples,
        returned=totals.returned_examples,
        in_flight=total(outcome.trainers, "in_flight"),
        dropped=max(0, dropped),
        bad_rows=totals.bad_rows,
        reasons=reasons,
    )


def ledger_of(c: Coordinator, outcome: Outcome, examples: Examples) -> Ledger:
    """The identities of the design's section 3, and whether they hold."""
    totals = c.ledger.totals
    dead = [member.info.name for member in _dead(c, "trainer")]
    # Of one that died after it was held, what it had confirmed is in the ledger's count, too.
    living = {name: answer for name, answer in outcome.trainers.items() if name not in dead}
    counted = total(living, "confirmed_examples")
    counted += sum(c.ledger.trained_examples_of.get(name, 0) for name in dead)
    sums = c.store.sums()
    identities = []
    if not _dead(c, "reader"):
        # A dead reader's last deliveries are known to nobody: its count is that of its last heartbeat.
        identities.append(
            Identity.of(
                "read by the readers = trained + returned + in flight",
                examples.read,
                examples.trained + examples.returned + examples.in_flight,
            )
        )
    identities += [
        Identity.of(
            "confirmed at the trainers = distinct + replayed", counted, examples.distinct + examples.replayed
        ),
        Identity.of(
            "trained in the ledger's file = trained in the coordinator's memory",
            sums["trained_examples"],
            totals.trained_examples,
        ),
    ]
    if outcome.stop is None:
        identities.append(
            Identity.of("cut by the readers = distinct", totals.parsed_examples, totals.distinct_examples)
        )
        identities.append(
            Identity.of("spans whose batches hold other examples = none", len(c.ledger.misread_spans()), 0)
        )
    interrupted_replay = examples.dropped > 0 or (outcome.stop is not None and examples.returned > 0)
    # With a shard dead, the others may have applied a push that it never will.
    interrupted_replay |= outcome.stop is not None and outcome.stop.lost_shard
    shard_applied = {name: int(answer["applied_batches"]) for name, answer in outcome.shards.items()}
    if not interrupted_replay:
        identities += [
            Identity.of(f"batches applied by {name} = distinct batches", applied, totals.distinct_batches)
            for name, applied in sorted(shard_applied.items())
        ]
    return Ledger.of(identities, c.lost_dense_updates, shard_applied)


def _dead(c: Coordinator, role: str) -> list[Member]:
    return [member for member in c.members.everyone(role) if not member.alive]
