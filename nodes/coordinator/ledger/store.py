"""The ledger's file, and the thread that writes it.

The file is SQLite in WAL mode, so that it survives a killed coordinator. A slow disk delays no heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from ....pipeline.checkpoint.saved_ledger import SavedLedger
from ....pipeline.data.span import Span
from ....pipeline.errors import ResourceError
from ....pipeline.types import BatchId
from .records import Acknowledged, JournalEntry, LeftOut, StoredSnapshot
from .snapshot import IN_SNAPSHOT, forget_snapshot, read_snapshot, write_snapshot

T = TypeVar("T")

log = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE spans (
  epoch INTEGER, span INTEGER, path TEXT, kind TEXT, start INTEGER, stop INTEGER, reader TEXT,
  batches INTEGER, examples INTEGER, bad_rows INTEGER, PRIMARY KEY (epoch, span)
) WITHOUT ROWID;
CREATE TABLE batches (
  epoch INTEGER, span INTEGER, number INTEGER, seed INTEGER, examples INTEGER, trainer TEXT,
  acknowledgements INTEGER, PRIMARY KEY (epoch, span, number)
) WITHOUT ROWID;
CREATE TABLE returned (epoch INTEGER, span INTEGER, number INTEGER, examples INTEGER, trainer TEXT);
CREATE TABLE left_out (
  epoch INTEGER, span INTEGER, number INTEGER, seed INTEGER, examples INTEGER, trainer TEXT, why TEXT
);
CREATE TABLE restored_spans (
  epoch INTEGER, span INTEGER, batches INTEGER, examples INTEGER, PRIMARY KEY (epoch, span)
) WITHOUT ROWID;
CREATE TABLE restored_batches (
  epoch INTEGER, span INTEGER, number INTEGER, examples INTEGER, PRIMARY KEY (epoch, span, number)
) WITHOUT ROWID;
CREATE TABLE restored_left_out (
  epoch INTEGER, span INTEGER, number INTEGER, examples INTEGER, PRIMARY KEY (epoch, span, number)
) WITHOUT ROWID;
CREATE TABLE shards (name TEXT PRIMARY KEY, applied INTEGER, repeated INTEGER);
CREATE TABLE events (seconds REAL, node TEXT, what TEXT);
CREATE TABLE journal (
  id INTEGER PRIMARY KEY, seconds REAL, token TEXT, number INTEGER, kind TEXT, body BLOB
);
"""

# A checkpoint that finds no room fills its volume for a moment, then removes what it wrote.
FULL_PATIENCE_SECONDS: Final = 2.0
_FULL_PAUSE_SECONDS: Final = 0.05

_CHANGES = "SELECT seconds, token, number, kind, body FROM journal WHERE"
_IN = "SELECT 1 FROM {} x WHERE (x.epoch, x.span, x.number) = (r.epoch, r.span, r.number)"


@dataclass(frozen=True)
class StoredTotals:
    """Totals of the file; see the methods of `LedgerStore` of the same names."""

    sums: dict[str, int]
    returned_and_settled_examples: int
    untrained_examples_by_reason: dict[str, int]


class LedgerStore:
    """One SQLite file, used by one thread at a time.

    Each method is one transaction, or a part of one within `commit`.

    With `synchronous = NORMAL`, a committed transaction survives the death of the process, but perhaps not
    that of the machine. If the volume is full, a write waits FULL_PATIENCE_SECONDS for room. Raises
    ResourceError if the file cannot be written.

    Args:
        new: whether to create the file; otherwise it is that of a dead coordinator.
    """

    def __init__(self, path: Path, *, new: bool = True) -> None:
        self.path = path
        self._in_transaction = False
        try:
            if new:
                # The journal contains the nodes' tokens: only this user may read it.
                path.touch(0o600)
            # One thread opens it, another writes.
            self._db = sqlite3.connect(path, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            if new:
                self._db.executescript(SCHEMA)
            self._inode = path.stat().st_ino
        except (OSError, sqlite3.Error) as error:
            raise self._unwritable(error) from error

    def is_in_place(self) -> bool:
        """Return whether the file is where it was opened."""
        try:
            return self.path.stat().st_ino == self._inode
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            # A volume that does not answer has not lost it; a write would say what is wrong.
            return True

    def restored(self, ledger: SavedLedger) -> None:
        """Store what the resumed run had trained and left out."""
        spans = [(*key, span.batches, span.examples) for key, span in ledger.complete.items()]
        self._write("INSERT INTO restored_spans VALUES (?, ?, ?, ?)", spans)
        for table, numbers_by_span in (
            ("restored_batches", ledger.partial),
            ("restored_left_out", ledger.left_out),
        ):
            batches = [
                (*key, number, examples)
                for key, numbers in numbers_by_span.items()
                for number, examples in numbers.items()
            ]
            self._write(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", batches)

    def grant(self, epoch: int, span: Span, reader: str) -> None:
        """Store that a span was handed out, perhaps again."""
        self._write(
            "INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL)",
            [(epoch, span.number, span.path, span.kind, span.start, span.stop, reader)],
        )

    def span_read(self, epoch: int, number: int, batches: int, examples: int, bad_rows: int) -> None:
        """Store that a whole span was cut."""
        self._write(
            "UPDATE spans SET batches = ?, examples = ?, bad_rows = ? WHERE epoch = ? AND span = ?",
            [(batches, examples, bad_rows, epoch, number)],
        )

    def acknowledge(self, rows: Iterable[Acknowledged]) -> None:
        self._write(
            "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, 1) ON CONFLICT (epoch, span, number)"
            " DO UPDATE SET acknowledgements = acknowledgements + 1",
            [(r.id.epoch, r.id.span, r.id.number, r.id.seed, r.examples, r.trainer) for r in rows],
        )

    def left_out(self, rows: Iterable[LeftOut]) -> None:
        self._write(
            "INSERT INTO left_out VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(r.id.epoch, r.id.span, r.id.number, r.id.seed, r.examples, r.trainer, r.why) for r in rows],
        )

    def returned(self, rows: Iterable[tuple[int, int, int, int, str]]) -> None:
        """Store returned deliveries: (epoch, span, number, examples, trainer)."""
        self._write("INSERT INTO returned VALUES (?, ?, ?, ?, ?)", rows)

    def shard(self, name: str, applied: int, repeated: int) -> None:
        """Store an embedding shard's counts of applied and repeated batches."""
        self._write("INSERT OR REPLACE INTO shards VALUES (?, ?, ?)", [(name, applied, repeated)])

    def event(self, seconds: float, node: str, what: str) -> None:
        self._write("INSERT INTO events VALUES (?, ?, ?)", [(seconds, node, what)])

    def journal(self, entry: JournalEntry) -> None:
        """Append a change of the job's state."""
        row = entry.seconds, entry.token, entry.number, entry.kind, entry.body
        self._write("INSERT INTO journal (seconds, token, number, kind, body) VALUES (?, ?, ?, ?, ?)", [row])

    def commit(self, *parts: Callable[[LedgerStore], None]) -> None:
        """Run all parts in one transaction, with retries on a full disk."""
        self._retried(lambda: [part(self) for part in parts])

    def entries(self, after: int = 0) -> Iterator[JournalEntry]:
        """Return the changes of the job's state after one of them, in order.

        A file without a journal, of a coordinator that died as it began, has none.
        """
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'journal'").fetchone():
            return
        for row in self._db.execute(f"{_CHANGES} id > ? ORDER BY id", (after,)):
            yield JournalEntry(*row)

    def entries_beside_snapshot(self, last: int) -> Iterator[JournalEntry]:
        """Return the changes of kinds that a snapshot lacks, up to its last one."""
        for row in self._db.execute(f"{_CHANGES} kind NOT IN {IN_SNAPSHOT} AND id <= ? ORDER BY id", (last,)):
            yield JournalEntry(*row)

    def save(self, snapshot: StoredSnapshot) -> None:
        """Replace the snapshot by one of all changes so far."""
        self._retried(lambda: write_snapshot(self._db, snapshot))

    def saved(self) -> tuple[int, StoredSnapshot] | None:
        """Return the snapshot; see `read_snapshot`."""
        return read_snapshot(self._db)

    def forget_snapshot(self) -> None:
        self._retried(lambda: forget_snapshot(self._db))

    def events(self) -> list[tuple[float, str, str]]:
        """Return what happened to nodes, in order."""
        return self._db.execute("SELECT seconds, node, what FROM events ORDER BY rowid").fetchall()

    def sums(self) -> dict[str, int]:
        """Return the file's totals: examples of each kind, and distinct batches."""
        row = self._db.execute(
            "SELECT coalesce(sum(examples * acknowledgements), 0), coalesce(sum(examples), 0),"
            " coalesce(sum(examples * (acknowledgements - 1)), 0), count(*) FROM batches"
        ).fetchone()
        back = self._db.execute("SELECT coalesce(sum(examples), 0) FROM returned").fetchone()
        without = self._db.execute("SELECT coalesce(sum(examples), 0) FROM left_out").fetchone()
        return {
            "left_out_examples": without[0],
            "trained_examples": row[0],
            "distinct_examples": row[1],
            "replayed_examples": row[2],
            "distinct_batches": row[3],
            "returned_examples": back[0],
        }

    def returned_and_settled_examples(self) -> int:
        """Return the returned examples whose batch was trained or left out later."""
        row = self._db.execute(
            "SELECT coalesce(sum(r.examples), 0) FROM returned r"
            f" WHERE EXISTS ({_IN.format('batches')}) OR EXISTS ({_IN.format('left_out')})"
        ).fetchone()
        return int(row[0])

    def returned_and_left_out(self) -> list[BatchId]:
        """Return the batches left out after a dead trainer returned them.

        Only the shards know which of them the dead trainer had pushed.
        """
        rows = self._db.execute(
            "SELECT DISTINCT r.epoch, r.span, r.number, l.seed FROM returned r"
            " JOIN left_out l ON (l.epoch, l.span, l.number) = (r.epoch, r.span, r.number)"
            f" WHERE NOT EXISTS ({_IN.format('batches')}) ORDER BY 1, 2, 3"
        ).fetchall()
        return [BatchId(*row) for row in rows]

    def untrained_examples_by_reason(self) -> dict[str, int]:
        """Return the examples that were left out and never trained, by reason.

        Each batch counts once, under its first reason.
        """
        rows = self._db.execute(
            "SELECT why, sum(examples) FROM (SELECT why, examples, min(rowid) AS first FROM left_out r"
            f" WHERE NOT EXISTS ({_IN.format('batches')}) GROUP BY epoch, span, number)"
            " GROUP BY why ORDER BY min(first)"
        ).fetchall()
        return {str(why): int(examples) for why, examples in rows}

    def totals(self) -> StoredTotals:
        """Return the file's figures for the report."""
        return StoredTotals(
            self.sums(), self.returned_and_settled_examples(), self.untrained_examples_by_reason()
        )

    def trained_examples_in(self, spans: Collection[int]) -> dict[str, int]:
        """Return the examples of some spans' batches in the first epoch, by who trained them first."""
        rows = self._db.execute(
            "SELECT span, trainer, sum(examples) FROM batches WHERE epoch = 0 AND span BETWEEN ? AND ?"
            " GROUP BY span, trainer",
            (min(spans), max(spans)),
        )
        by_trainer: Counter[str] = Counter()
        for span, trainer, examples in rows:
            by_trainer[trainer] += examples if span in spans else 0
        return dict(by_trainer)

    def close(self) -> None:
        """Fold the write-ahead log into the file and close it."""
        self._db.close()

    def _write(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        written = list(rows)
        if self._in_transaction:
            self._db.executemany(statement, written)
        else:
            self._retried(lambda: self._db.executemany(statement, written))

    def _retried(self, work: Callable[[], object]) -> None:
        """Run work in one transaction, with retries on a full disk."""
        latest = time.monotonic() + FULL_PATIENCE_SECONDS
        while True:
            self._in_transaction = True
            try:
                with self._db:
                    work()
                return
            except sqlite3.Error as error:
                full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
                if not full or time.monotonic() > latest:
                    raise self._unwritable(error) from error
            finally:
                self._in_transaction = False
            time.sleep(_FULL_PAUSE_SECONDS)

    def _unwritable(self, error: OSError | sqlite3.Error) -> ResourceError:
        locked = getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        remedy = "end the other program that keeps it locked" if locked else "free some disk space"
        return ResourceError(f"the ledger cannot be written ({error})", where=str(self.path), remedy=remedy)


class LedgerWriter:
    """A thread that runs work on a `LedgerStore`, in order of submission.

    Belongs to the coordinator's loop. A caller that promises a write awaits it first.
    """

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")

    async def run(self, work: Callable[[LedgerStore], T]) -> T:
        """Run work on the store and return its result.

        The work is submitted before the first await, and is done even if the caller is cancelled. Raises
        ResourceError if the file cannot be written.
        """
        return await self.submit(work)

    def submit(
        self, work: Callable[[LedgerStore], T], failed: Callable[[BaseException], None] | None = None
    ) -> asyncio.Future[T]:
        """Submit work; return a future of its result.

        The work is done even if the future is cancelled, for example by the end of a task that awaits it.
        `failed` is called on the loop with an error of the work, even then.
        """
        done = asyncio.wrap_future(self._thread.submit(work, self._store))
        if failed is not None:
            done.add_done_callback(lambda _: (error := done.exception()) is not None and failed(error))
        # Cancelling the inner future would drop its work, and the file would lack what memory has.
        return asyncio.shield(done)

    def event(self, seconds: float, node: str, what: str) -> None:
        """Store an event without waiting.

        If it cannot be stored, it is logged; the report also has it.
        """

        def work() -> None:
            try:
                self._store.event(seconds, node, what)
            except ResourceError as error:
                log.error("an event could not be stored in the ledger's file: %s", error)

        self._thread.submit(work)

    async def flush(self) -> None:
        """Wait until everything that was submitted is done."""
        await self.run(lambda _: None)

    async def close(self) -> None:
        """Finish the submitted work, close the file and end the thread."""
        try:
            await self.run(LedgerStore.close)
        finally:
            self._thread.shutdown()
