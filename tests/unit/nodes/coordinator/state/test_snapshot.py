"""A snapshot of the state: with the changes after it, it gives what the whole journal gives."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shadowsync.nodes.coordinator import journal
from shadowsync.nodes.coordinator.ledger.records import SNAPSHOT_KINDS, StoredSnapshot
from shadowsync.nodes.coordinator.ledger.snapshot import _row
from shadowsync.nodes.coordinator.ledger.store import LedgerStore
from shadowsync.nodes.coordinator.recovery import takeover as takeovers
from shadowsync.nodes.coordinator.state.changes import RECORDS
from shadowsync.nodes.coordinator.state.job import JobState
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.field_checks import values_of
from shadowsync.tests.support.coordinator.played_job import (
    RESTORED,
    STEPS,
    everything,
    in_folder,
    play,
    taken_over,
)

BEFORE = [
    "grant",
    "train",
    "cut",
    "grant",
    "die",
    "train",
    "leave out",
    "join",
    "read again",
    "grant",
    "score",
]
AFTER = ["train", "grant", "train", "cut", "die", "train", "join", "grant", "score", "train"]
HISTORY = [*BEFORE, "save", *AFTER]
SEED = 9
CHANGES = "SELECT count(*) FROM journal"


def query(folder: Path, statement: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        return database.execute(statement, values).fetchall()


def known(folder: Path, restored: SavedLedger | None = None) -> tuple[Any, Any, int]:
    """What another coordinator knows, the replies that it has, and how many changes it has read."""
    state, takeover = taken_over(folder, restored)
    takeover.store.close()
    replies = {
        token: {number: values_of(reply) for number, reply in given.items()}
        for token, given in takeover.replies.items()
    }
    return whole(state), replies, takeover.replayed


def whole(state: JobState) -> Any:
    """All of a state, and the order in which its spans were handed out."""
    return everything(state), list(state.ledger._open)


def forget_snapshot(folder: Path) -> None:
    store = LedgerStore(folder / "ledger.sqlite", new=False)
    store.forget_snapshot()
    store.close()


def played(folder: Path, steps: list[str], restored: SavedLedger | None = None) -> Any:
    """Play these steps; return all of the state that the coordinator had then."""

    async def main() -> Any:
        before = await play(folder, SEED, steps, restored)
        await before.store.close()
        return whole(before.state)

    return asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 16),
    steps=st.lists(st.sampled_from([*STEPS, "save"]), max_size=50),
    resumed=st.booleans(),
)
@example(seed=SEED, steps=HISTORY, resumed=False)
@example(seed=SEED, steps=[*HISTORY, *HISTORY], resumed=True)
def test_it_and_the_changes_after_it_give_what_the_whole_journal_gives(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: list[str], resumed: bool
) -> None:
    async def work(folder: Path) -> None:
        restored = RESTORED if resumed else None
        before = await play(folder, seed, steps, restored)
        state, replies, _ = known(folder, restored)
        assert state == whole(before.state)
        forget_snapshot(folder)
        assert (state, replies) == known(folder, restored)[:2]
        await before.store.close()

    in_folder(work, tmp_path_factory)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 16), steps=st.lists(st.sampled_from(STEPS), min_size=10, max_size=40))
def test_a_takeover_of_many_changes_leaves_one(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: list[str]
) -> None:
    """So the next takeover does not read them again."""

    async def work(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(takeovers, "SNAPSHOT_CHANGES", 1)
            before = await play(folder, seed, steps)
            assert query(folder, "SELECT 1 FROM sqlite_master WHERE name = 'snapshot'") == []
            first, second = known(folder), known(folder)
            assert first[:2] == second[:2]
            assert first[0] == whole(before.state)
            if before.state.ledger.owed.is_idle:
                assert second[2] < first[2] == query(folder, CHANGES)[0][0]
            await before.store.close()

    in_folder(work, tmp_path_factory)


@pytest.mark.parametrize("table", ["snapshot", "snapshot_spans"])
def test_a_part_of_another_moment_is_seen(tmp_path: Path, table: str) -> None:
    """The control: what both tables have is needed, as it was at that change."""
    before = played(tmp_path, HISTORY)
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    # The same job, up to a change before.
    played(earlier, [*BEFORE[:3], "grant", "save"])
    rows = [_row(number, body) for number, _, body in query(earlier, f"SELECT * FROM {table}")]
    ((last,),) = query(tmp_path, "SELECT last_change FROM snapshot")
    if table == "snapshot":
        ((number, _, body),) = rows
        assert number < last
        spans = query(tmp_path, "SELECT count(*) FROM snapshot_spans")[0][0]
        values = msgpack.unpackb(body, strict_map_key=False)
        values["ledger"]["spans"] = spans
        rows = [_row(last, msgpack.packb(values))]
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as database, database:
        database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", rows)
    try:
        state, _, replayed = known(tmp_path)
    except ValueError:
        return
    assert replayed < query(tmp_path, CHANGES)[0][0]
    assert state != before


@pytest.mark.parametrize("kind", [*SNAPSHOT_KINDS[:3], "NodeDied"])
def test_a_change_that_is_missing_after_it_is_seen(tmp_path: Path, kind: str) -> None:
    """The control: changes after the snapshot are read, of whatever kind."""
    before = played(tmp_path, HISTORY)
    later = f"SELECT max(id) FROM journal WHERE kind = '{kind}' AND id > (SELECT last_change FROM snapshot)"
    query(tmp_path, f"DELETE FROM journal WHERE id = ({later})")
    try:
        state = known(tmp_path)[0]
    except (ValueError, ClusterError):
        # What follows does not fit any more.
        return
    assert state != before


def flip(folder: Path, table: str, column: str) -> None:
    """Change one bit of a number, or in the middle of a value."""
    ((rowid, value), *_) = query(folder, f"SELECT rowid, {column} FROM {table} ORDER BY rowid")
    if isinstance(value, bytes):
        middle = len(value) // 2
        changed = value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]
    else:
        changed = value ^ 64
    query(folder, f"UPDATE {table} SET {column} = ? WHERE rowid = ?", changed, rowid)


def lose_a_span(folder: Path) -> None:
    query(folder, "DELETE FROM snapshot_spans WHERE place = (SELECT max(place) FROM snapshot_spans)")


def be_of_the_format_before(folder: Path) -> None:
    """It was a list with its number first."""
    ((last,),) = query(folder, "SELECT last_change FROM snapshot")
    row = _row(last, msgpack.packb([1, 0.0, [], []]))
    query(folder, "INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?)", *row)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        *(
            (partial(flip, table=table, column=column), "")
            for table, number in (("snapshot", "last_change"), ("snapshot_spans", "place"))
            for column in ("body", "checksum", number)
        ),
        (lose_a_span, "it has"),
        (be_of_the_format_before, "its format is 1, not 2"),
    ],
)
def test_with_a_damaged_one_the_whole_journal_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], why: str
) -> None:
    before = played(tmp_path, HISTORY)
    damage(tmp_path)
    with caplog.at_level(logging.WARNING):
        state, _, replayed = known(tmp_path)
    assert "the whole journal is read" in caplog.text
    assert why in caplog.text
    assert state == before
    assert replayed == query(tmp_path, CHANGES)[0][0]
    # It is not found damaged twice.
    caplog.clear()
    assert known(tmp_path)[0] == before
    assert caplog.text == ""


def test_of_another_format_it_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shadowsync.nodes.coordinator.state.snapshot.FORMAT", 3)
        before = played(tmp_path, HISTORY)
    assert known(tmp_path)[0] == before
    assert "its format is 3, not 2" in caplog.text


def test_the_changes_that_are_read_do_not_grow_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot every 20 changes, and what a node holds changes hands meanwhile."""
    monkeypatch.setattr(journal, "SNAPSHOT_CHANGES", 20)
    for rounds in (2, 20):
        folder = tmp_path / str(rounds)
        folder.mkdir()
        played(folder, ["grant", "train", "cut"] * rounds + ["train", "score"] * 20 * rounds)
        read, changes = known(folder)[2], query(folder, CHANGES)[0][0]
        beside = query(folder, f"{CHANGES} WHERE kind NOT IN {SNAPSHOT_KINDS}")[0][0]
        assert read <= beside + 20 < changes
        forget_snapshot(folder)
        assert known(folder)[2] == changes, "the control"


def test_only_changes_beside_it_are_looked_up_before_it(tmp_path: Path) -> None:
    """By an index of these alone: the others are not even scanned."""
    played(tmp_path, HISTORY)
    store = LedgerStore(tmp_path / "ledger.sqlite", new=False)
    statements: list[str] = []
    store._db.set_trace_callback(statements.append)
    kinds = {entry.kind for entry in store.entries_beside_snapshot(1 << 40)}
    plan = store._db.execute(f"EXPLAIN QUERY PLAN {statements[0]}").fetchall()
    store.close()
    assert [("not_booked" in row[3], "SCAN" in row[3]) for row in plan] == [(True, False)]
    assert not kinds & set(SNAPSHOT_KINDS)
    assert "Hello" in kinds


def test_the_kinds_of_a_snapshot_are_kinds_of_change() -> None:
    assert set(SNAPSHOT_KINDS) < set(RECORDS.kinds)


def test_one_that_is_not_written_to_its_end_leaves_the_earlier_one(tmp_path: Path) -> None:
    before = played(tmp_path, HISTORY)
    store = LedgerStore(tmp_path / "ledger.sqlite", new=False)

    def spans() -> Iterator[tuple[int, bytes]]:
        yield 0, b"later"
        raise InterruptedError

    with pytest.raises(InterruptedError):
        store.save(StoredSnapshot(b"later", spans()))
    store.close()
    assert known(tmp_path)[0] == before
    assert known(tmp_path)[2] < query(tmp_path, CHANGES)[0][0]


def test_there_is_none_while_a_shard_lacks_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SNAPSHOT_CHANGES", 1)

    async def main() -> None:
        job = await play(tmp_path, 3, ["grant", "train"])
        state = job.state
        assert query(tmp_path, "SELECT count(*) FROM snapshot") == [(1,)]
        last = query(tmp_path, "SELECT last_change FROM snapshot")
        state.ledger.owed.lose_shard(0)
        await job.step("grant")
        await job.store.flush()
        assert query(tmp_path, "SELECT last_change FROM snapshot") == last
        state.ledger.owed.restore_shard(0, [])
        await job.step("train")
        await job.store.flush()
        assert query(tmp_path, "SELECT last_change FROM snapshot") > last
        await job.store.close()

    asyncio.run(main())
