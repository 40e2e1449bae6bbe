"""The books of a run: they add up, and one lost or doubled message makes them red."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from shadowsync.nodes.outcome import Outcome
from shadowsync.nodes.stop import Stop
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.books import BATCH, Books, red

READ = "read by the readers = trained + returned + in flight"
CONFIRMED = "confirmed at the trainers = distinct + replayed"
FILE = "trained in the ledger's file = trained in the coordinator's memory"
CUT = "cut by the readers = distinct"
MISREAD = "spans whose batches hold other examples = none"
SHARDS = [f"batches applied by embedding-{number} = distinct batches" for number in range(2)]
INTERRUPTED = Stop("interrupted", "interrupted", ExitCode.INTERRUPTED)


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path)


def train_all(books: Books, but: int = 0) -> None:
    """Every batch, the last `but` of them excepted, by the two trainers in turn."""
    for span in range(2):
        books.cut(span)
    for place, batch in enumerate(books.batches[: 8 - but]):
        books.train(f"t{place % 2}", batch)


def test_a_job_without_losses_adds_up(books: Books) -> None:
    train_all(books)
    examples, ledger = books.close()
    assert ledger.adds_up
    assert [identity.name for identity in ledger.identities] == [READ, CONFIRMED, FILE, CUT, MISREAD, *SHARDS]
    assert examples.read == examples.trained == examples.distinct == 8 * BATCH
    assert (examples.replayed, examples.returned, examples.in_flight, examples.dropped) == (0, 0, 0, 0)
    assert ledger.shard_applied == {"embedding-0": 8, "embedding-1": 8}


def lost_delivery(books: Books) -> None:
    # The reader counted it, and nobody ever heard of it again.
    books.deliver()


def doubled_delivery(books: Books) -> None:
    # A trainer took a repeat for a new batch: the shards knew it, the reader had sent it once.
    books.acknowledge("t0", books.batches[7])
    books.confirm("t0")


def lost_push(books: Books) -> None:
    books.applied["embedding-1"] -= 1


def doubled_push(books: Books) -> None:
    books.applied["embedding-0"] += 1


def lost_confirmation(books: Books) -> None:
    books.confirmed["t1"] -= BATCH


def doubled_acknowledgement(books: Books) -> None:
    books.acknowledge("t1", books.batches[7])


def lost_row(books: Books) -> None:
    # In memory it is there, and a restarted coordinator would not know it.
    books.deliver()
    books.acknowledge("t1", books.batches[0], stored=False)
    books.confirm("t1")


def doubled_row(books: Books) -> None:
    row = books.ledger.acknowledge("trainer-1", books.batches[0], BATCH)
    books.store.acknowledge([row, row])
    books.deliver()
    books.confirm("t1")


def doubled_in_flight(books: Books) -> None:
    books.in_flight["t0"] += BATCH


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        (lost_delivery, [READ]),
        (doubled_delivery, [READ]),
        (doubled_in_flight, [READ]),
        (lost_confirmation, [CONFIRMED]),
        (doubled_acknowledgement, [READ, CONFIRMED]),
        (lost_row, [FILE]),
        (doubled_row, [FILE]),
        (lost_push, SHARDS[1:]),
        (doubled_push, SHARDS[:1]),
    ],
)
def test_one_lost_or_doubled_message_is_red(
    books: Books, fault: Callable[[Books], None], wanted: list[str]
) -> None:
    train_all(books)
    fault(books)
    _, ledger = books.close()
    assert not ledger.adds_up
    assert red(ledger) == wanted


def test_a_batch_that_is_not_trained_is_red(books: Books) -> None:
    train_all(books, but=1)
    _, ledger = books.close()
    assert red(ledger) == [CUT]


def test_batches_of_other_sizes_than_were_cut_are_red(books: Books) -> None:
    for span in range(2):
        books.cut(span)
    # One span's loss is the other's gain: the sums over all of them hold.
    for place, batch in enumerate(books.batches):
        examples = BATCH + (1 if place == 0 else -1 if place == 7 else 0)
        books.read_examples += examples
        books.push()
        books.acknowledge("t0", batch, examples)
        books.confirm("t0", examples)
    _, ledger = books.close()
    assert red(ledger) == [MISREAD]


def test_a_dead_trainers_batches_are_returned_trained_elsewhere_and_add_up(books: Books) -> None:
    train_all(books, but=3)
    done, *held = books.batches[4:]
    for _ in held:
        books.deliver()
    # Of one the shards had the push when the trainer died; of one the acknowledgement came through too.
    books.push()
    books.push()
    books.acknowledge("t0", held[1])
    again = books.die("t0", [done, *held])
    assert again == [held[0], held[2]]
    for batch in again:
        books.deliver()
        books.acknowledge("t1", batch)
        books.confirm("t1")
    books.push()
    examples, ledger = books.close()
    assert red(ledger) == []
    assert (examples.returned, examples.trained, examples.dropped) == (2 * BATCH, 8 * BATCH, 0)
    assert examples.read == 10 * BATCH


def test_a_return_that_is_forgotten_or_told_twice_is_red(tmp_path: Path) -> None:
    for times in (0, 1, 2):
        folder = tmp_path / str(times)
        folder.mkdir()
        books = Books(folder)
        train_all(books, but=1)
        last = books.batches[7]
        books.deliver()
        books.members.lose("t0", "died")
        for _ in range(times):
            books.ledger.return_batches([(last, BATCH)])
        books.train("t1", last)
        _, ledger = books.close()
        assert red(ledger) == ([] if times == 1 else [READ])


def test_an_interrupted_job_counts_what_was_in_flight(books: Books) -> None:
    books.outcome = Outcome(stop=INTERRUPTED)
    books.cut(0)
    books.train("t0", books.batches[0])
    books.deliver()
    books.in_flight["t1"] = BATCH
    examples, ledger = books.close()
    # What was not read or trained is no fault then.
    assert [identity.name for identity in ledger.identities] == [READ, CONFIRMED, FILE, *SHARDS]
    assert ledger.adds_up
    assert (examples.read, examples.trained, examples.in_flight) == (2 * BATCH, BATCH, BATCH)


@pytest.mark.parametrize("fault", [lost_delivery, lost_confirmation, lost_row, lost_push])
def test_an_interrupted_job_is_red_for_a_lost_message_too(
    books: Books, fault: Callable[[Books], None]
) -> None:
    books.outcome = Outcome(stop=INTERRUPTED)
    train_all(books, but=2)
    fault(books)
    _, ledger = books.close()
    assert len(red(ledger)) == 1


def test_what_was_returned_and_not_trained_again_is_dropped_and_said(books: Books) -> None:
    books.outcome = Outcome(stop=INTERRUPTED)
    train_all(books, but=2)
    for _ in range(2):
        books.deliver()
    again = books.die("t0", books.batches[6:])
    books.train("t1", again[0])
    examples, ledger = books.close()
    assert (examples.returned, examples.dropped) == (2 * BATCH, BATCH)
    ((why, count),) = examples.reasons.items()
    assert "before they were trained again" in why
    assert count == BATCH
    # The shards may have applied pushes of batches that nobody acknowledged.
    assert [identity.name for identity in ledger.identities] == [READ, CONFIRMED, FILE]
    assert ledger.adds_up


def test_a_dead_readers_own_count_is_no_part_of_the_books(books: Books) -> None:
    books.outcome = Outcome(stop=Stop("death", "reader-0 died", ExitCode.STOPPED_BY_DEATH))
    train_all(books, but=4)
    books.members.require("r").metrics = {"read_examples": 3 * BATCH}
    books.members.lose("r", "died")
    examples, ledger = books.close()
    assert examples.read == 3 * BATCH
    assert READ not in [identity.name for identity in ledger.identities]
    assert ledger.adds_up


def test_a_trainer_that_does_not_answer_is_not_made_up_for(books: Books) -> None:
    train_all(books)
    books.confirmed["t1"] = 0
    _, ledger = books.close()
    assert red(ledger) == [CONFIRMED]


def test_malformed_rows_are_stated(books: Books) -> None:
    train_all(books)
    books.ledger.totals.bad_rows = 3
    examples, _ = books.close()
    assert examples.bad_rows == 3
    assert examples.reasons == {"malformed rows": 3}


def test_a_trainer_that_dies_after_it_was_held_is_counted_once(books: Books) -> None:
    """Its answer to `hold` is there, and it is dead by the time the books are closed."""
    train_all(books)
    name = books.members.require("t0").info.name
    answer = {"confirmed_examples": books.confirmed["t0"], "in_flight": 0}
    books.die("t0", [])
    _, ledger = books.close(late_answers={name: answer})
    assert ledger.adds_up, red(ledger)
