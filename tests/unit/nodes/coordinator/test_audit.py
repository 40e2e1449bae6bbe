"""The ledger of a run: it adds up, and one lost or doubled message makes it red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.coordinator.state.outcome import (
    ClosingResult,
    DrainedCounts,
    Outcome,
    Stop,
    TrainingResult,
)
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.ledger import Ledger
from shadowsync.pipeline.report.merged_work import merged_counts
from shadowsync.pipeline.types import BatchId
from shadowsync.tests.support.coordinator.job_counts import BATCH, JobCounts, red

READ = "read by the readers = trained + returned + in flight"
CONFIRMED = "confirmed at the trainers = distinct + replayed"
FILE = "trained, in ledger.sqlite = trained, in the coordinator"
CUT = "cut by the readers = distinct"
MISREAD = "spans whose batches do not add up = 0"
SHARDS = [f"batches applied by embedding-{number} = distinct batches" for number in range(2)]
REPEATED = "pushes received twice ≤ sent again + returned"
INTERRUPTED = Stop("interrupted", "interrupted", ExitCode.INTERRUPTED)


@pytest.fixture
def job_counts(tmp_path: Path) -> JobCounts:
    return JobCounts(tmp_path)


def unknown(ledger: Ledger) -> list[str]:
    """The identities that cannot be checked."""
    return [identity.name for identity in ledger.identities if identity.holds is None]


def train_all(job_counts: JobCounts, but: int = 0) -> None:
    """Every batch, the last `but` of them excepted, by the two trainers in turn."""
    for span in range(2):
        job_counts.cut(span)
    for place, batch in enumerate(job_counts.batches[: 8 - but]):
        job_counts.train(f"t{place % 2}", batch)


def test_a_job_without_losses_adds_up(job_counts: JobCounts) -> None:
    train_all(job_counts)
    examples, ledger = job_counts.close()
    assert ledger.adds_up
    assert [identity.name for identity in ledger.identities] == [
        READ,
        CONFIRMED,
        FILE,
        CUT,
        MISREAD,
        *SHARDS,
        REPEATED,
    ]
    assert examples.read == examples.trained == examples.distinct == 8 * BATCH
    assert (examples.replayed, examples.returned, examples.in_flight, examples.dropped) == (0, 0, 0, 0)
    assert ledger.shard_applied == {"embedding-0": 8, "embedding-1": 8}
    assert not job_counts.contradicted


def lost_delivery(job_counts: JobCounts) -> None:
    # The reader counted it, and nobody ever heard of it again.
    job_counts.deliver()


def doubled_delivery(job_counts: JobCounts) -> None:
    # A trainer took a repeat for a new batch: the shards knew it, the reader had sent it once.
    job_counts.acknowledge("t0", job_counts.batches[7])
    job_counts.confirm("t0")


def lost_push(job_counts: JobCounts) -> None:
    job_counts.applied["embedding-1"] -= 1


def doubled_push(job_counts: JobCounts) -> None:
    job_counts.applied["embedding-0"] += 1


def lost_confirmation(job_counts: JobCounts) -> None:
    job_counts.confirmed["t1"] -= BATCH


def doubled_acknowledgement(job_counts: JobCounts) -> None:
    job_counts.acknowledge("t1", job_counts.batches[7])


def lost_row(job_counts: JobCounts) -> None:
    # In memory it is there, and a restarted coordinator would not know it.
    job_counts.deliver()
    job_counts.acknowledge("t1", job_counts.batches[0], stored=False)
    job_counts.confirm("t1")


def doubled_row(job_counts: JobCounts) -> None:
    row = job_counts.ledger.acknowledge("trainer-1", job_counts.batches[0], BATCH)
    job_counts.store.acknowledge([row, row])
    job_counts.deliver()
    job_counts.confirm("t1")


def doubled_in_flight(job_counts: JobCounts) -> None:
    job_counts.in_flight["t0"] += BATCH


def pushed_by_a_stranger(job_counts: JobCounts) -> None:
    # It was there first with a batch's id, so that the trainer's own gradients came too late.
    job_counts.repeated_pushes["embedding-1"] += 1


@pytest.mark.parametrize(
    ("fault", "wanted", "contradicted"),
    [
        (lost_delivery, [READ], ["reader-0"]),
        (doubled_delivery, [READ], ["trainer-0"]),
        (doubled_in_flight, [READ], ["trainer-0"]),
        (lost_confirmation, [CONFIRMED], ["trainer-1"]),
        (doubled_acknowledgement, [READ, CONFIRMED], ["trainer-1"]),
        (lost_row, [FILE], ["trainer-1"]),
        (doubled_row, [FILE], ["trainer-1"]),
        (lost_push, SHARDS[1:], []),
        (doubled_push, SHARDS[:1], []),
        (pushed_by_a_stranger, [REPEATED], []),
    ],
)
def test_one_lost_or_doubled_message_is_red(
    job_counts: JobCounts, fault: Callable[[JobCounts], None], wanted: list[str], contradicted: list[str]
) -> None:
    train_all(job_counts)
    fault(job_counts)
    _, ledger = job_counts.close()
    assert not ledger.adds_up
    assert red(ledger) == wanted
    # A shard is named by the identity itself.
    assert job_counts.contradicted == contradicted


@pytest.mark.parametrize(("too_many", "adds_up"), [(-BATCH, True), (0, True), (1, False)])
def test_no_sync_node_has_merged_more_than_its_trainers_trained(
    job_counts: JobCounts, too_many: int, adds_up: bool
) -> None:
    """Less may be: what a trainer had not sent. A dead trainer's work does not count."""
    train_all(job_counts)
    merged_examples = {"trainer-0": 4 * BATCH, "trainer-1": 4 * BATCH + too_many, "trainer-7": 100 * BATCH}
    counts: dict[str, Any] = {}
    for name, examples in merged_examples.items():
        counts |= merged_counts(name, examples, 9)
    job_counts.outcome = replace(job_counts.outcome, closed=ClosingResult(syncs={"sync-0": counts}))
    _, ledger = job_counts.close()
    merged = "merged by sync-0, of trainers that live ≤ trained by them"
    assert red(ledger) == ([] if adds_up else [merged])
    (identity,) = [one for one in ledger.identities if one.name == merged]
    assert (identity.left, identity.right) == (8 * BATCH + too_many, 8 * BATCH)


def test_pushes_that_were_sent_again_may_be_known_or_not(job_counts: JobCounts) -> None:
    train_all(job_counts)
    job_counts.repeated_pushes["embedding-0"] = 2
    job_counts.resent_pushes["t1"] = 3
    _, ledger = job_counts.close()
    assert red(ledger) == []
    (identity,) = [one for one in ledger.identities if one.name == REPEATED]
    assert (identity.left, identity.right, identity.holds) == (2, 3, True)


@pytest.mark.parametrize(("known", "holds"), [(2, True), (3, None)])
def test_what_a_dead_trainer_sent_again_is_not_known(
    job_counts: JobCounts, known: int, holds: bool | None
) -> None:
    """Each of two shards knew the batch that came back; of more only the dead trainer could tell."""
    train_all(job_counts, but=1)
    last = job_counts.batches[7]
    job_counts.deliver()
    job_counts.die("t0", [last])
    job_counts.train("t1", last)
    job_counts.repeated_pushes["embedding-0"] = known
    _, ledger = job_counts.close()
    assert ledger.adds_up
    (identity,) = [one for one in ledger.identities if one.name == REPEATED]
    assert identity.holds is holds
    assert ("trainer-0" in identity.unknown) == (holds is None)


def test_a_batch_that_is_not_trained_is_red(job_counts: JobCounts) -> None:
    train_all(job_counts, but=1)
    _, ledger = job_counts.close()
    assert red(ledger) == [CUT]


def test_batches_of_other_sizes_than_were_cut_are_red(job_counts: JobCounts) -> None:
    for span in range(2):
        job_counts.cut(span)
    # One span's loss is the other's gain: the sums over all of them hold.
    for place, batch in enumerate(job_counts.batches):
        examples = BATCH + (1 if place == 0 else -1 if place == 7 else 0)
        job_counts.read_examples += examples
        job_counts.push()
        job_counts.acknowledge("t0", batch, examples)
        job_counts.confirm("t0", examples)
    _, ledger = job_counts.close()
    assert red(ledger) == [MISREAD]


def test_a_dead_trainers_batches_are_returned_trained_elsewhere_and_add_up(job_counts: JobCounts) -> None:
    train_all(job_counts, but=3)
    done, *held = job_counts.batches[4:]
    for _ in held:
        job_counts.deliver()
    # Of one the shards had the push when the trainer died; of one the acknowledgement came through too.
    job_counts.push()
    job_counts.push()
    job_counts.acknowledge("t0", held[1])
    again = job_counts.die("t0", [done, *held])
    assert again == [held[0], held[2]]
    for batch in again:
        job_counts.deliver()
        job_counts.acknowledge("t1", batch)
        job_counts.confirm("t1")
    job_counts.push()
    examples, ledger = job_counts.close()
    assert red(ledger) == []
    assert (examples.returned, examples.trained, examples.dropped) == (2 * BATCH, 8 * BATCH, 0)
    assert examples.read == 10 * BATCH


def test_a_return_that_is_forgotten_or_told_twice_is_red(tmp_path: Path) -> None:
    for times in (0, 1, 2):
        folder = tmp_path / str(times)
        folder.mkdir()
        job_counts = JobCounts(folder)
        train_all(job_counts, but=1)
        last = job_counts.batches[7]
        job_counts.deliver()
        job_counts.members.lose("t0", "died")
        for _ in range(times):
            job_counts.ledger.return_batches("trainer-0", [(last, BATCH)])
        job_counts.train("t1", last)
        _, ledger = job_counts.close()
        assert red(ledger) == ([] if times == 1 else [READ])


def test_an_interrupted_job_counts_what_was_in_flight(job_counts: JobCounts) -> None:
    job_counts.outcome = Outcome(stop=INTERRUPTED)
    job_counts.cut(0)
    job_counts.train("t0", job_counts.batches[0])
    job_counts.deliver()
    job_counts.in_flight["t1"] = BATCH
    examples, ledger = job_counts.close()
    # What was not read or trained is no fault then.
    assert [identity.name for identity in ledger.identities] == [READ, CONFIRMED, FILE, *SHARDS, REPEATED]
    assert ledger.adds_up
    assert (examples.read, examples.trained, examples.in_flight) == (2 * BATCH, BATCH, BATCH)


def test_what_a_worker_had_that_did_not_stop_is_unknown(job_counts: JobCounts) -> None:
    job_counts.outcome = Outcome(stop=INTERRUPTED, drained=DrainedCounts(unstopped=frozenset({"trainer-1"})))
    job_counts.train("t0", job_counts.batches[0])
    # One shard has applied what the other one never got, and what the coordinator has just noted.
    job_counts.deliver()
    job_counts.applied["embedding-1"] += 2
    job_counts.acknowledge("t1", job_counts.batches[1])
    examples, ledger = job_counts.close()
    assert examples.in_flight is None
    unknown = [identity.name for identity in ledger.identities if identity.unknown]
    assert unknown == [READ, *SHARDS]
    assert ledger.adds_up, red(ledger)


@pytest.mark.parametrize("fault", [lost_delivery, lost_confirmation, lost_row, lost_push])
def test_an_interrupted_job_is_red_for_a_lost_message_too(
    job_counts: JobCounts, fault: Callable[[JobCounts], None]
) -> None:
    job_counts.outcome = Outcome(stop=INTERRUPTED)
    train_all(job_counts, but=2)
    fault(job_counts)
    _, ledger = job_counts.close()
    assert len(red(ledger)) == 1


def test_what_was_returned_and_not_trained_again_is_dropped_and_said(job_counts: JobCounts) -> None:
    job_counts.outcome = Outcome(stop=INTERRUPTED)
    train_all(job_counts, but=2)
    for _ in range(2):
        job_counts.deliver()
    again = job_counts.die("t0", job_counts.batches[6:])
    job_counts.train("t1", again[0])
    examples, ledger = job_counts.close()
    assert (examples.returned, examples.dropped) == (2 * BATCH, BATCH)
    ((why, count),) = examples.reasons.items()
    assert "before they were trained again" in why
    assert count == BATCH
    # The shards may have applied pushes of batches that nobody acknowledged.
    assert [identity.name for identity in ledger.identities] == [READ, CONFIRMED, FILE, *SHARDS, REPEATED]
    assert unknown(ledger) == SHARDS
    assert ledger.adds_up


def test_a_dead_readers_own_count_is_no_part_of_the_ledger(job_counts: JobCounts) -> None:
    """What it had delivered is what its trainers say that they got."""
    job_counts.outcome = Outcome(stop=Stop("death", "reader-0 died", ExitCode.STOPPED_BY_DEATH))
    train_all(job_counts, but=4)
    job_counts.members.require("r").metrics = {"read_examples": 3 * BATCH}
    job_counts.members.lose("r", "died")
    examples, ledger = job_counts.close()
    assert examples.read == 4 * BATCH
    assert unknown(ledger) == []
    assert ledger.adds_up


def test_a_delivery_of_a_dead_reader_that_nobody_trained_is_seen(job_counts: JobCounts) -> None:
    job_counts.outcome = Outcome(stop=Stop("death", "reader-0 died", ExitCode.STOPPED_BY_DEATH))
    train_all(job_counts, but=4)
    job_counts.received["t1"] += BATCH
    job_counts.members.lose("r", "died")
    _, ledger = job_counts.close()
    assert red(ledger) == [READ]


def test_what_two_dead_nodes_had_sent_each_other_is_as_the_ledger_knows_it(job_counts: JobCounts) -> None:
    job_counts.outcome = Outcome(stop=Stop("death", "reader-0 died", ExitCode.STOPPED_BY_DEATH))
    train_all(job_counts, but=4)
    job_counts.deliver()
    job_counts.die("t1", [job_counts.batches[4]])
    # What nobody has returned is on neither side.
    job_counts.received["t1"] += 2 * BATCH
    job_counts.members.lose("r", "died")
    examples, ledger = job_counts.close()
    assert examples.read == 5 * BATCH
    assert examples.returned == BATCH
    assert ledger.adds_up, ledger.identities


def test_a_dead_shards_count_is_unknown(job_counts: JobCounts) -> None:
    job_counts.outcome = Outcome(stop=Stop("death", "embedding-0 died", ExitCode.STOPPED_BY_DEATH))
    train_all(job_counts, but=4)
    job_counts.members.lose("e0", "died")
    del job_counts.applied["embedding-0"]
    _, ledger = job_counts.close()
    assert unknown(ledger)[-1] == SHARDS[0]


def test_malformed_rows_are_stated(job_counts: JobCounts) -> None:
    train_all(job_counts)
    job_counts.ledger.totals.bad_rows = 3
    examples, _ = job_counts.close()
    assert examples.bad_rows == 3
    assert examples.reasons == {"malformed rows": 3}


def test_a_trainer_that_dies_after_it_was_held_is_counted_once(job_counts: JobCounts) -> None:
    """Its answer to `hold` is there, and it is dead by the time the job_counts are closed."""
    train_all(job_counts)
    name = job_counts.members.require("t0").info.name
    reply = {"confirmed_examples": job_counts.confirmed["t0"], "in_flight": 0}
    job_counts.die("t0", [])
    _, ledger = job_counts.close(late_replies={name: reply})
    assert ledger.adds_up, red(ledger)


@pytest.mark.parametrize("trained_again", [False, True])
def test_a_run_that_goes_on_counts_what_shards_had_applied_early(tmp_path: Path, trained_again: bool) -> None:
    """Two batches are restored; one shard had applied a third, which it does not apply again."""
    early = BatchId(0, 0, 2, 1)
    job_counts = JobCounts(
        tmp_path,
        restored=SavedLedger(1, partial={(0, 0): {0: BATCH, 1: BATCH}}),
        applied_before={"embedding-0": frozenset({early}), "embedding-1": frozenset()},
        outcome=Outcome(stop=INTERRUPTED),
    )
    job_counts.applied = {"embedding-0": 3, "embedding-1": 2}
    if trained_again:
        job_counts.train("t0", early)
        job_counts.applied["embedding-0"] -= 1
    else:
        job_counts.train("t0", job_counts.batches[3])
    examples, ledger = job_counts.close()
    assert ledger.adds_up, ledger.identities
    assert (examples.trained, examples.distinct) == (BATCH, BATCH)
    assert [i.name for i in ledger.identities][-3:-1] == [
        f"batches applied by embedding-{number} = restored + distinct + early" for number in range(2)
    ]


def test_a_run_that_goes_on_is_red_for_a_lost_push_too(tmp_path: Path) -> None:
    job_counts = JobCounts(tmp_path, restored=SavedLedger(1, partial={(0, 0): {0: BATCH}}))
    job_counts.outcome = Outcome(stop=INTERRUPTED)
    job_counts.applied = {"embedding-0": 1, "embedding-1": 1}
    job_counts.train("t0", job_counts.batches[3])
    lost_push(job_counts)
    _, ledger = job_counts.close()
    assert red(ledger) == ["batches applied by embedding-1 = restored + distinct + early"]


READ_LEFT_OUT = "read by the readers = trained + left out + returned + in flight"
TOLD_LEFT_OUT = "left out by the trainers = left out in the ledger"
FILE_LEFT_OUT = "left out, in ledger.sqlite = left out, in the coordinator"
CUT_LEFT_OUT = "cut by the readers = distinct + left out"


def test_what_is_left_out_is_dropped_with_why_and_adds_up(job_counts: JobCounts) -> None:
    train_all(job_counts, but=3)
    for batch, why in zip(job_counts.batches[5:], ("loss", "rows", "loss"), strict=True):
        job_counts.leave_out("t1", batch, why)
    examples, ledger = job_counts.close()
    assert red(ledger) == []
    names = [identity.name for identity in ledger.identities]
    left_out = [TOLD_LEFT_OUT, FILE_LEFT_OUT]
    assert names == [READ_LEFT_OUT, CONFIRMED, FILE, *left_out, CUT_LEFT_OUT, MISREAD, *SHARDS, REPEATED]
    assert (examples.dropped, examples.distinct, examples.read) == (3 * BATCH, 5 * BATCH, 8 * BATCH)
    because = "of a batch left out because "
    assert examples.reasons == {f"{because}loss": 2 * BATCH, f"{because}rows": BATCH}
    # A shard never hears of them.
    assert ledger.shard_applied == {"embedding-0": 5, "embedding-1": 5}
    reported = job_counts.bad_batches.report()
    assert reported is not None
    assert (reported.count, reported.examples) == (3, 3 * BATCH)
    assert [bad.id for bad in reported.first] == [tuple(batch) for batch in job_counts.batches[5:]]
    assert {bad.path for bad in reported.first} == {"part.tsv"}


def test_what_is_left_out_and_trained_in_the_end_is_not_dropped(job_counts: JobCounts) -> None:
    """Another trainer, with other weights, makes finite numbers of it; and one that is left out twice is
    dropped once."""
    train_all(job_counts, but=2)
    once_trained, never = job_counts.batches[6:]
    for token in ("t0", "t1"):
        job_counts.leave_out(token, never)
    job_counts.leave_out("t0", once_trained, "another why")
    job_counts.train("t1", once_trained)
    examples, ledger = job_counts.close()
    assert red(ledger) == []
    assert (examples.distinct, examples.dropped) == (7 * BATCH, BATCH)
    assert examples.reasons == {"of a batch left out because why": BATCH}


def lost_report(job_counts: JobCounts) -> None:
    job_counts.left_out["t1"] -= BATCH


def forgotten_row(job_counts: JobCounts) -> None:
    job_counts.leave_out("t1", job_counts.batches[7], stored=False)


def pushed_all_the_same(job_counts: JobCounts) -> None:
    job_counts.applied["embedding-1"] += 1


def forgotten_delivery(job_counts: JobCounts) -> None:
    job_counts.read_examples -= BATCH


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        (lost_report, [TOLD_LEFT_OUT]),
        (forgotten_row, [FILE_LEFT_OUT]),
        (pushed_all_the_same, SHARDS[1:]),
        (forgotten_delivery, [READ_LEFT_OUT]),
    ],
)
def test_one_lost_message_about_what_is_left_out_is_red(
    job_counts: JobCounts, fault: Callable[[JobCounts], None], wanted: list[str]
) -> None:
    train_all(job_counts, but=1)
    job_counts.leave_out("t1", job_counts.batches[7])
    fault(job_counts)
    _, ledger = job_counts.close()
    assert red(ledger) == wanted


@pytest.mark.parametrize("reported", [True, False])
def test_what_the_dead_had_pushed_and_the_living_left_out_adds_up(
    job_counts: JobCounts, reported: bool
) -> None:
    """The shards alone know of it: without their word the job_counts are red."""
    train_all(job_counts, but=2)
    for _ in range(2):
        job_counts.deliver()
    job_counts.applied["embedding-0"] += 1
    again = job_counts.die("t0", job_counts.batches[6:])
    for batch in again:
        job_counts.leave_out("t1", batch)
    if reported:
        job_counts.pushed_by_the_dead = {"embedding-0": {again[0]}}
    examples, ledger = job_counts.close()
    assert red(ledger) == ([] if reported else SHARDS[:1])
    assert (examples.returned, examples.dropped) == (2 * BATCH, 2 * BATCH)
    assert examples.read == 10 * BATCH


def test_what_was_applied_early_and_is_left_out_now_is_counted_once(tmp_path: Path) -> None:
    """A shard had applied it when the checkpoint was taken, and it came back from a dead trainer, too."""
    early = BatchId(0, 0, 2, 1)
    job_counts = JobCounts(
        tmp_path,
        restored=SavedLedger(1, partial={(0, 0): {0: BATCH}}),
        applied_before={"embedding-0": frozenset({early}), "embedding-1": frozenset()},
        outcome=Outcome(training=TrainingResult("nothing got better")),
    )
    job_counts.applied = {"embedding-0": 2, "embedding-1": 1}
    job_counts.pushed_by_the_dead = {"embedding-0": {early}}
    job_counts.deliver()
    job_counts.die("t0", [early])
    job_counts.leave_out("t1", early)
    _, ledger = job_counts.close()
    assert red(ledger) == []
    assert [i.name for i in ledger.identities][-3:-1] == [
        f"batches applied by embedding-{number} = restored + distinct + early" for number in range(2)
    ]
