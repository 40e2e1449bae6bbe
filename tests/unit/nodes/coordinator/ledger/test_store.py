"""The ledger on disk: the same sums as in memory, also for whoever opens it after a kill.

It is written on a thread of its own: in order, and with nobody waiting but who wants to.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.nodes.coordinator.ledger import store as ledger_store
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.nodes.coordinator.ledger.records import Acknowledged, LeftOut
from shadowsync.nodes.coordinator.ledger.store import LedgerStore, LedgerWriter
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger, SavedSpan
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import ResourceError
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.real_time import run_in_real_time

SPAN = Span(0, "part.tsv", "bytes", 0, 100)

REFUSING = """
CREATE TRIGGER refuse BEFORE INSERT ON batches WHEN NEW.number = 7 BEGIN SELECT RAISE(ABORT, 'no'); END
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from shadowsync.nodes.coordinator.ledger.records import Acknowledged
from shadowsync.nodes.coordinator.ledger.store import LedgerStore
from shadowsync.pipeline.types import BatchId
store = LedgerStore(Path(sys.argv[1]))
store.acknowledge([Acknowledged(BatchId(0, 0, n, 1), 10, "trainer-0", False) for n in range(3)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def rows(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()


@settings(max_examples=15)
@given(
    st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=6),
    st.lists(st.integers(0, 7), max_size=4),
    st.sets(st.integers(0, 7)),
)
def test_the_file_has_the_sums_of_the_memory(
    tmp_path_factory: pytest.TempPathFactory, reports: list[list[int]], bad: list[int], lost: set[int]
) -> None:
    store = LedgerStore(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
    state = LedgerState([SPAN], epochs=1, seed=1, shuffled=False)
    state.grant("reader-0")
    store.grant(0, SPAN, "reader-0")
    for numbers in reports:
        # Batch n has 10 + n examples, so that a mix-up shows.
        store.acknowledge([state.acknowledge("trainer-0", batch_id(n), 10 + n) for n in numbers])
    store.left_out(state.leave_out("trainer-0", batch_id(n), 10 + n, "why") for n in bad)
    again = state.return_batches("trainer-0", [(batch_id(n), 10 + n) for n in sorted(lost)])
    store.returned((b.epoch, b.span, b.number, 10 + b.number, "trainer-0") for b in again)
    totals = state.totals
    assert store.sums() == {
        "trained_examples": totals.trained_examples,
        "distinct_examples": totals.distinct_examples,
        "replayed_examples": totals.replayed_examples,
        "distinct_batches": totals.distinct_batches,
        "returned_examples": totals.returned_examples,
        "left_out_examples": totals.left_out_examples,
    }
    assert store.returned_and_settled_examples() == 0
    assert store.returned_and_left_out() == []
    store.acknowledge([state.acknowledge("trainer-1", batch, 10 + batch.number) for batch in again[2:]])
    assert store.returned_and_settled_examples() == sum(10 + batch.number for batch in again[2:])
    store.left_out(state.leave_out("trainer-1", batch, 10 + batch.number, "why") for batch in again[1:3])
    assert store.returned_and_settled_examples() == sum(10 + batch.number for batch in again[1:])
    # What is trained, too, is trained.
    assert store.returned_and_left_out() == again[1:2]
    reasons = store.untrained_examples_by_reason()
    assert reasons == ({"why": totals.untrained_examples} if totals.untrained_examples else {})
    store.close()


def test_a_batch_is_left_out_for_the_first_reason_and_once(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path / "ledger.sqlite")
    for number, why in ((0, "loss"), (1, "dense"), (0, "dense"), (2, "loss")):
        store.left_out([LeftOut(batch_id(number), 10 + number, "trainer-0", why)])
    assert store.untrained_examples_by_reason() == {"loss": 22, "dense": 11}
    store.acknowledge([Acknowledged(batch_id(1), 11, "trainer-1", repeated=False)])
    assert store.untrained_examples_by_reason() == {"loss": 22}
    store.close()


def test_what_the_run_before_had_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = LedgerStore(path)
    before = SavedLedger(
        1, {(0, 0): SavedSpan(3, 20, 0)}, {(0, 1): {4: 9}}, {(0, 0): {1: 10}, (0, 1): {5: 8}}
    )
    store.restored(before)
    store.close()
    assert rows(path, "SELECT * FROM restored_spans") == [(0, 0, 3, 20)]
    assert rows(path, "SELECT * FROM restored_batches") == [(0, 1, 4, 9)]
    assert rows(path, "SELECT * FROM restored_left_out") == [(0, 0, 1, 10), (0, 1, 5, 8)]


def test_what_happens_to_a_span_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = LedgerStore(path)
    store.grant(0, SPAN, "reader-0")
    store.grant(1, SPAN, "reader-1")
    store.span_read(1, 0, batches=4, examples=40, bad_rows=2)
    store.shard("embedding-0", 3, 0)
    store.shard("embedding-0", 4, 1)
    store.event(1.5, "trainer-1", "died")
    store.close()
    assert rows(path, "SELECT * FROM spans ORDER BY epoch") == [
        (0, 0, "part.tsv", "bytes", 0, 100, "reader-0", None, None, None),
        (1, 0, "part.tsv", "bytes", 0, 100, "reader-1", 4, 40, 2),
    ]
    assert rows(path, "SELECT * FROM shards") == [("embedding-0", 4, 1)]
    assert rows(path, "SELECT * FROM events") == [(1.5, "trainer-1", "died")]
    # Closing folds everything into the one file.
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_what_was_written_outlives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert ended.returncode == -9
    assert rows(path, "SELECT count(*), sum(examples) FROM batches") == [(3, 30)]


def test_whoever_reads_the_file_does_not_stop_the_coordinator(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = LedgerStore(path)
    reading = sqlite3.connect(path, isolation_level=None)
    try:
        reading.execute("BEGIN")
        assert reading.execute("SELECT count(*) FROM events").fetchone() == (0,)
        store.event(1.0, "trainer-0", "died")
        assert reading.execute("SELECT count(*) FROM events").fetchone() == (0,)
        reading.execute("COMMIT")
        assert reading.execute("SELECT count(*) FROM events").fetchone() == (1,)
    finally:
        reading.close()
        store.close()


def test_a_telling_is_written_whole_or_not(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = LedgerStore(path)
    store.acknowledge([Acknowledged(batch_id(0), 10, "trainer-0", repeated=False)])
    other = sqlite3.connect(path)
    other.execute(REFUSING)
    other.commit()
    other.close()
    with pytest.raises(ResourceError, match=r"the ledger cannot be written \(no\)") as refused:
        store.acknowledge([Acknowledged(batch_id(n), 10, "trainer-0", repeated=False) for n in (6, 7)])
    assert str(path) in str(refused.value)
    assert store.sums()["distinct_batches"] == 1
    store.close()


@pytest.mark.parametrize("room_again", [True, False])
def test_a_volume_that_is_full_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_again: bool
) -> None:
    """SQLite's own limit of pages stands for the volume's; the control finds no room again."""
    store = LedgerStore(tmp_path / "ledger.sqlite")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        """It passes at once; nothing else takes any time."""
        pauses.append(seconds)
        if room_again and len(pauses) == 3:
            store._db.execute("PRAGMA max_page_count = 100000")

    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pause)
    monkeypatch.setattr(ledger_store, "time", clock)
    monkeypatch.setattr(ledger_store, "FULL_PATIENCE_SECONDS", 60.0 if room_again else 0.05)
    rows_of_pages = [Acknowledged(batch_id(at), 10, "trainer-0", False) for at in range(1000)]
    if room_again:
        store.acknowledge(iter(rows_of_pages))
        assert len(pauses) == 3
    else:
        with pytest.raises(ResourceError, match=r"cannot be written \(database or disk is full\)"):
            store.acknowledge(iter(rows_of_pages))
        assert pauses
    store.close()
    found = rows(tmp_path / "ledger.sqlite", "SELECT count(*), sum(acknowledgements) FROM batches")
    assert found == [(1000, 1000) if room_again else (0, None)]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"no-such-folder.*cannot be written"):
        LedgerStore(tmp_path / "no-such-folder" / "ledger.sqlite")
    garbage = tmp_path / "garbage.sqlite"
    garbage.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(ResourceError, match="not a database"):
        LedgerStore(garbage)


@run_by(run_in_real_time)
async def test_the_loop_goes_on_while_the_disk_does_not(tmp_path: Path) -> None:
    writer = LedgerWriter(LedgerStore(tmp_path / "ledger.sqlite"))
    go_on, order = threading.Event(), list[str]()

    def slow(_: LedgerStore) -> None:
        assert go_on.wait(60.0)
        order.append("first")

    first = asyncio.ensure_future(writer.run(slow))
    second = asyncio.ensure_future(writer.run(lambda _: order.append("second")))
    # Heartbeats are heard meanwhile; with the work on the loop nobody would come here.
    for _ in range(10):
        await asyncio.sleep(0)
    assert order == []
    go_on.set()
    await asyncio.gather(first, second)
    assert order == ["first", "second"]
    await writer.close()


@run_by(run_in_real_time)
async def test_what_was_submitted_is_done_although_its_callers_are_cancelled(tmp_path: Path) -> None:
    """One that runs, and one that still waits for its turn."""

    writer = LedgerWriter(LedgerStore(tmp_path / "ledger.sqlite"))
    begun, go_on, done = threading.Event(), threading.Event(), list[str]()

    def slow(_: LedgerStore) -> None:
        begun.set()
        assert go_on.wait(60.0)
        done.append("slow")

    async def like_a_request() -> None:
        await writer.submit(lambda _: done.append("submitted"))

    callers = [asyncio.ensure_future(writer.run(slow))]
    callers.append(asyncio.ensure_future(writer.run(lambda _: done.append("waiting"))))
    # As the session of a node that dies: it is cancelled while it waits for what it promised.
    callers.append(asyncio.ensure_future(like_a_request()))
    await asyncio.to_thread(begun.wait, 60.0)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert all(caller.cancelled() for caller in callers)
    go_on.set()
    await writer.close()
    assert done == ["slow", "waiting", "submitted"]


def test_events_are_there_before_what_comes_after_them(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def main() -> None:
        writer = LedgerWriter(LedgerStore(path))
        for number in range(20):
            writer.event(float(number), "trainer-0", f"event {number}")
        await writer.close()

    asyncio.run(main())
    found = rows(path, "SELECT what FROM events ORDER BY rowid")
    assert found == [(f"event {number}",) for number in range(20)]


def test_a_file_that_somebody_else_has_locked_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = LedgerStore(path)
    store._db.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(ResourceError, match=r"database is locked\); end the other program") as refused:
            store.event(1.0, "trainer-0", "died")
        assert "disk space" not in str(refused.value)
    finally:
        other.close()
    store.event(1.0, "trainer-0", "died")
    store.close()


def test_only_the_own_user_may_read_it(tmp_path: Path) -> None:
    """Its journal has the tokens of the nodes."""
    path = tmp_path / "ledger.sqlite"
    store = LedgerStore(path)
    store.event(0.0, "trainer-0", "an event")
    # Beside it the write-ahead log, which has what is not in it yet.
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    assert len(list(tmp_path.iterdir())) > 1
    store.close()


def test_only_a_file_that_is_gone_or_another_is_not_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LedgerStore(tmp_path / "ledger.sqlite")
    try:
        assert store.is_in_place()

        def unanswered(_: Path) -> None:
            raise OSError(errno.ESTALE, "stale file handle")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", unanswered)
            assert store.is_in_place(), "a volume that does not answer"
        store.path.rename(tmp_path / "moved")
        assert not store.is_in_place()
        store.path.touch()
        assert not store.is_in_place(), "another file"
    finally:
        store.close()
