"""Audit of a run's ledger: identities between counts of different processes.

If a message is lost or doubled, they do not add up. `lost_batches` finds batches that can no longer arrive,
so that a job fails instead of waiting forever.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...pipeline.report.document import ExampleCounts
from ...pipeline.report.ledger import Identity, Ledger
from ...pipeline.report.merged_work import merged_work
from ...pipeline.types import BatchId
from ...pipeline.wire.field_checks import Counts
from ..control.membership import Member
from .ledger.ledger import LedgerState
from .ledger.store import StoredTotals
from .state.job import JobState
from .state.outcome import CountsByNode, Outcome

HALF_PUSHED = (
    "some shards may have applied batches of a dead, silent or unstopped trainer that were not trained again,"
    " or batches of a dead reader that the input does not have"
)

_RECEIVED = "training_examples/"


def total(by_node: CountsByNode, key: str) -> int:
    """Return the sum of one count over nodes."""
    return sum(int(counts.get(key, 0)) for counts in by_node.values())


def examples_of(state: JobState, stored: StoredTotals, outcome: Outcome) -> ExampleCounts:
    """Return where the examples went.

    `read` is counted by the readers, `in_flight` by the trainers, the rest by the coordinator.
    """
    totals = state.ledger.totals
    given_up = _given_up(state, stored)
    # A reader that fails on malformed rows has not reported their span.
    bad_rows = max(totals.bad_rows, state.training.bad_rows_of_failed_reader)
    reasons = {"malformed rows": bad_rows} if bad_rows else {}
    for why, number in stored.untrained_examples_by_reason.items():
        reasons[f"of a batch left out because {why}"] = number
    if given_up:
        reasons["returned by a dead trainer, and the job stopped before they were trained again"] = given_up
    return ExampleCounts(
        read=total(outcome.drained.readers, "read_examples")
        + sum(
            _read_as_trainers_say(state, outcome, member.info.name)
            for member in state.members.everyone("reader")
            if member.info.name not in outcome.drained.readers
        ),
        distinct=totals.distinct_examples,
        trained=totals.trained_examples,
        replayed=totals.replayed_examples,
        returned=totals.returned_examples,
        in_flight=None if _uncertain_trainers(state, outcome) else total(outcome.trainers, "in_flight"),
        dropped=given_up + totals.untrained_examples,
        bad_rows=bad_rows,
        dropped_negatives=totals.dropped_negatives,
        reasons=reasons,
    )


def contradicted(state: JobState, outcome: Outcome) -> list[str]:
    """Return the living trainers and readers whose last counts contradict others.

    A trainer's contradict each other or the ledger. A reader's contradict those of trainers that do neither.
    Empty if no such node is known.
    """
    trainers = [
        (trainer.info.name, outcome.trainers[trainer.info.name])
        for trainer in state.members.alive("trainer")
        if trainer.info.name in outcome.trainers
    ]
    wrong = [name for name, counts in trainers if _is_contradicted(state, name, counts)]
    if wrong or state.members.gone():
        return wrong
    return [
        name
        for name, counts in outcome.drained.readers.items()
        if int(counts.get("read_examples", 0)) != _read_as_trainers_say(state, outcome, name)
    ]


def _is_contradicted(state: JobState, trainer: str, counts: Counts) -> bool:
    confirmed = int(counts.get("confirmed_examples", 0))
    left_out = int(counts.get("left_out_examples", 0))
    received = sum(int(number) for key, number in counts.items() if key.startswith(_RECEIVED))
    return (
        confirmed != state.ledger.trained_examples_of.get(trainer, 0)
        or left_out != state.ledger.left_out_examples_of.get(trainer, 0)
        or received != confirmed + left_out + int(counts.get("in_flight", 0))
    )


def _given_up(state: JobState, stored: StoredTotals) -> int:
    """Count the examples of returned deliveries whose batches were never settled."""
    return max(0, state.ledger.totals.returned_examples - stored.returned_and_settled_examples)


def ledger_of(state: JobState, stored: StoredTotals, outcome: Outcome, examples: ExampleCounts) -> Ledger:
    """Build the ledger's identities (docs/architecture.md, Words) and check them."""
    totals = state.ledger.totals
    # Includes silent trainers: their confirmed batches are in the ledger.
    dead = [member.info.name for member in _unheard(state, outcome)]
    # If it died after the count, its confirmed batches are also in the ledger.
    living = {name: counts for name, counts in outcome.trainers.items() if name not in dead}
    counted = total(living, "confirmed_examples")
    counted += sum(state.ledger.trained_examples_of.get(name, 0) for name in dead)
    sums = stored.sums
    # Named only if there are any.
    left_out = " + left out" if totals.left_out_batches else ""
    identities = [
        _read_identity(state, outcome, left_out, examples),
        Identity.of(
            "confirmed at the trainers = distinct + replayed", counted, examples.distinct + examples.replayed
        ),
        Identity.of(
            "trained, in ledger.sqlite = trained, in the coordinator",
            sums["trained_examples"],
            totals.trained_examples,
        ),
    ]
    if totals.left_out_batches:
        identities += _left_out_identities(state, living, dead, sums)
    if outcome.stop is None and not outcome.training.ended_early:
        settled = totals.distinct_examples + totals.untrained_examples
        identities.append(
            Identity.of(f"cut by the readers = distinct{left_out}", totals.parsed_examples, settled)
        )
        identities.append(
            Identity.of("spans whose batches do not add up = 0", len(state.ledger.misread_spans()), 0)
        )
    half_pushed = _are_half_pushed(state, stored, outcome, examples)
    identities += [*_shard_identities(state, outcome, half_pushed), _repeated_identity(state, outcome)]
    identities += _merged_identities(state, outcome)
    shard_applied = {
        name: int(counts.get("applied_batches", 0)) for name, counts in outcome.drained.shards.items()
    }
    return Ledger.of(identities, state.training.lost_dense_updates, shard_applied)


def _are_half_pushed(
    state: JobState, stored: StoredTotals, outcome: Outcome, examples: ExampleCounts
) -> bool:
    """Return whether shards may have applied more than the ledger's distinct batches."""
    return (
        _given_up(state, stored) > 0
        or (outcome.stop is not None and examples.returned > 0)
        # What a dead reader had sent to a dead trainer was neither returned nor trained again.
        or (_pushed_and_lost(state) and state.ledger.has_lost_spans)
        # Pushes of a silent trainer, or of a worker that did not stop, may be missing from the ledger.
        or bool(_uncertain_trainers(state, outcome))
        # The other shards may have applied pushes that a dead shard never will.
        or (outcome.stop is not None and outcome.stop.lost_shard)
        # Pushes of batches that no span has.
        or state.ledger.totals.stray_batches > 0
        # The same holds for batches still to be trained again, which a resumed run does.
        or not state.ledger.owed.is_settled
    )


def _shard_identities(state: JobState, outcome: Outcome, half_pushed: bool) -> list[Identity]:
    heard = [
        Identity.unchecked(_shard_name(name), HALF_PUSHED)
        if half_pushed
        else _shard_identity(state, name, counts, outcome.drained.applied_of.get(name, ()))
        for name, counts in sorted(outcome.drained.shards.items())
    ]
    unheard = [
        Identity.unchecked(_shard_name(member.info.name), "it did not answer" if member.alive else "it died")
        for member in state.members.everyone("embedding")
        if _is_unheard_shard(state, outcome, member)
    ]
    return heard + unheard


def _is_unheard_shard(state: JobState, outcome: Outcome, member: Member) -> bool:
    """Return whether a shard's applied batches are unknown for good."""
    if member.alive:
        return member.begun and state.members.started and member.info.name not in outcome.drained.shards
    return member.begun and (not state.members.started or member.info.index in state.vacancies.empty_shards())


def _silent_trainers(state: JobState, outcome: Outcome) -> list[str]:
    """Return the living trainers without a final reply."""
    living = (
        [trainer.info.name for trainer in state.members.alive("trainer")] if state.members.started else []
    )
    return [name for name in living if name not in outcome.trainers]


def _uncertain_trainers(state: JobState, outcome: Outcome) -> dict[str, str]:
    """Return the trainers of which it is unknown what they still had, and why."""
    silent = dict.fromkeys(_silent_trainers(state, outcome), "did not say what it still had")
    unstopped = {
        trainer.info.name: "had a worker that did not stop in time, so what it still had is not known"
        for trainer in state.members.everyone("trainer")
        if trainer.info.name in outcome.drained.unstopped and trainer.alive
    }
    return silent | unstopped


def _unheard(state: JobState, outcome: Outcome) -> list[Member]:
    uncertain = _uncertain_trainers(state, outcome)
    # A trainer that left has reported its batches.
    trainers = [trainer for trainer in state.members.everyone("trainer") if not trainer.left]
    return [trainer for trainer in trainers if not trainer.alive or trainer.info.name in uncertain]


def _read_identity(state: JobState, outcome: Outcome, left_out: str, examples: ExampleCounts) -> Identity:
    name = f"read by the readers = trained{left_out} + returned + in flight"
    for trainer, why in _uncertain_trainers(state, outcome).items():
        return Identity.unchecked(name, f"{trainer} {why}")
    assert examples.in_flight is not None
    settled = examples.trained + state.ledger.totals.left_out_examples
    return Identity.of(name, examples.read, settled + examples.returned + examples.in_flight)


def _read_as_trainers_say(state: JobState, outcome: Outcome, reader: str) -> int:
    """Count the examples of a lost reader, by its trainers' counts.

    For a dead trainer only the deliveries in the ledger count; the others are unknown. The same holds for a
    trainer that left, since the rest of its batches is read again.
    """
    read = 0
    for trainer in state.members.everyone("trainer"):
        name = trainer.info.name
        counts = outcome.trainers.get(name)
        known = state.ledger.known_deliveries(reader, name)
        read += known if counts is None or trainer.left else int(counts.get(_RECEIVED + reader, 0))
    return read


def _left_out_identities(
    state: JobState, living: CountsByNode, dead: list[str], sums: dict[str, int]
) -> list[Identity]:
    totals = state.ledger.totals
    counted = total(living, "left_out_examples")
    counted += sum(state.ledger.left_out_examples_of.get(name, 0) for name in dead)
    return [
        Identity.of("left out by the trainers = left out in the ledger", counted, totals.left_out_examples),
        Identity.of(
            "left out, in ledger.sqlite = left out, in the coordinator",
            sums["left_out_examples"],
            totals.left_out_examples,
        ),
    ]


def _merged_identities(state: JobState, outcome: Outcome) -> list[Identity]:
    """Build the identities of sync nodes that merge: nobody's work counts twice.

    What a dead trainer had trained and not confirmed may be in a merge, and is trained again. A batch that a
    device leaves out may have been counted before.
    """
    ledger = state.ledger
    living = [trainer.info.name for trainer in state.members.alive("trainer")]
    left_out = " + left out" if any(ledger.left_out_examples_of.get(name) for name in living) else ""
    return [
        Identity.bounded(
            f"merged by {name}, of trainers that live ≤ trained{left_out} by them",
            sum(merged[trainer].examples for trainer in living if trainer in merged),
            sum(ledger.settled_examples_of(trainer) for trainer in living),
        )
        for name, counts in sorted(outcome.closed.syncs.items())
        if (merged := merged_work(counts))
    ]


def _shard_name(shard: str) -> str:
    return f"batches applied by {shard} = distinct batches"


def _shard_identity(state: JobState, name: str, counts: Counts, halves: Iterable[BatchId]) -> Identity:
    applied, distinct = int(counts.get("applied_batches", 0)), state.ledger.totals.distinct_batches
    # A replacement has the dead node's index, but another name.
    place = {member.info.name: member.info.index for member in state.members.everyone("embedding")}.get(name)
    first = name if place is None else f"embedding-{place}"
    before = state.origin.applied_before.get(first, ())
    applied_of = set(halves)
    # Batches left out when they were trained again; a replacement shard lacks them.
    gone = state.ledger.owed.left_out - applied_of
    # Batches that a trainer pushed before it died, and that the next trainer left out.
    half = sum(batch not in before for batch in applied_of - state.ledger.owed.left_out)
    if not state.ledger.restored_batches:
        extra = " + pushed by a dead trainer, then left out" if half else ""
        extra += " - lost with a shard, then left out" if gone else ""
        return Identity.of(_shard_name(name) + extra, applied, distinct + half - len(gone))
    # Batches applied before its checkpoint but not in the checkpoint's ledger count until trained again.
    early = sum(not state.ledger.has(batch) for batch in before)
    right = state.ledger.restored_batches + distinct + early + half - len(gone)
    return Identity.of(f"batches applied by {name} = restored + distinct + early", applied, right)


def _repeated_identity(state: JobState, outcome: Outcome) -> Identity:
    """Build the identity for repeated pushes.

    A shard receives a push twice if its worker sent it again, or if the batch is trained again after a death.
    Any other repeat means that someone else pushed a batch first, so that the gradients of its trainer
    reached no row.
    """
    name = "pushes received twice ≤ sent again + returned"
    early = sum(len(batches) for batches in state.origin.applied_before.values())
    if early:
        name += " + early"
    if state.ledger.owed.settled:
        name += " + trained again"
    if state.ledger.totals.repeated_batches:
        name += " + delivered twice"
    known = total(outcome.drained.shards, "repeated_pushes")
    trainers = state.members.everyone("trainer")
    counts = {
        trainer.info.name: outcome.trainers.get(trainer.info.name, trainer.metrics) for trainer in trainers
    }
    totals, settled = state.ledger.totals, state.ledger.owed.settled
    returned, twice = totals.returned_batches, totals.repeated_batches
    again = len(outcome.drained.shards) * (returned + settled + twice + _pushed_before(state))
    explained = total(counts, "resent_pushes") + again + early
    unheard = [
        trainer
        for trainer in counts
        if trainer not in outcome.trainers or trainer in outcome.drained.unstopped
    ]
    if known > explained and unheard:
        return Identity.unchecked(name, f"what {unheard[0]} sent again since its last heartbeat is not known")
    return Identity.bounded(name, known, explained)


def _pushed_before(state: JobState) -> int:
    """Count batches that a dead trainer may have pushed unreported."""
    return state.ledger.reread_batches if _pushed_and_lost(state) else 0


def _pushed_and_lost(state: JobState) -> bool:
    # A reader that left counts like a dead one: only what its trainers received was sent.
    trainers = [trainer for trainer in _dead(state, "trainer") if not trainer.left]
    return bool(trainers and _dead(state, "reader"))


def _dead(state: JobState, role: str) -> list[Member]:
    return [member for member in state.members.everyone(role) if not member.alive]


def lost_batches(ledger: LedgerState, readers: Iterable[Member]) -> int:
    """Count delivered batches that are lost for good; 0 while unknown.

    A reader keeps a batch until its trainer says that the coordinator has recorded it. So once all readers
    have cut all spans and keep nothing, the batches that the ledger still misses will never come. A heartbeat
    may be older than the ledger, so it counts only if its `read_spans` covers every span.
    """
    living = [(reader.metrics, ledger.spans_read_of[reader.info.name]) for reader in readers]
    if not living or any(int(counts.get("retained_bytes", 1)) for counts, _ in living):
        return 0
    if any(int(counts.get("read_spans", 0)) != read for counts, read in living):
        return 0
    return ledger.missing_batches() or 0
