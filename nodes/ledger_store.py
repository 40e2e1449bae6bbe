"""The ledger on disk: SQLite in WAL mode, so that the coordinator may be killed too."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from ..pipeline.data.spans import Span
from ..pipeline.errors import ResourceError
from .ledger_state import Acknowledged

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
CREATE TABLE shards (name TEXT PRIMARY KEY, applied INTEGER, repeated INTEGER);
CREATE TABLE events (seconds REAL, node TEXT, what TEXT);
"""


class LedgerStore:
    """One SQLite file; owned by the coordinator's loop. Each method is one transaction.

    With `synchronous = NORMAL` a committed transaction survives the death of the process, though perhaps
    not of the machine. Raises ResourceError when the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._db = sqlite3.connect(path)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise self._unwritable(error) from error

    def grant(self, epoch: int, span: Span, reader: str) -> None:
        """A span was handed out."""
        self._write(
            "INSERT INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL)",
            [(epoch, span.number, span.path, span.kind, span.start, span.stop, reader)],
        )

    def span_read(self, epoch: int, number: int, batches: int, examples: int, bad_rows: int) -> None:
        """A span was cut whole."""
        self._write(
            "UPDATE spans SET batches = ?, examples = ?, bad_rows = ? WHERE epoch = ? AND span = ?",
            [(batches, examples, bad_rows, epoch, number)],
        )

    def acknowledge(self, rows: Iterable[Acknowledged]) -> None:
        """Batches were trained."""
        self._write(
            "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, 1) ON CONFLICT (epoch, span, number)"
            " DO UPDATE SET acknowledgements = acknowledgements + 1",
            [(r.id.epoch, r.id.span, r.id.number, r.id.seed, r.examples, r.trainer) for r in rows],
        )

    def returned(self, rows: Iterable[tuple[int, int, int, int, str]]) -> None:
        """Deliveries came back: (epoch, span, number, examples, trainer)."""
        self._write("INSERT INTO returned VALUES (?, ?, ?, ?, ?)", rows)

    def shard(self, name: str, applied: int, repeated: int) -> None:
        """What an embedding shard says that it applied."""
        self._write("INSERT OR REPLACE INTO shards VALUES (?, ?, ?)", [(name, applied, repeated)])

    def event(self, seconds: float, node: str, what: str) -> None:
        """Something happened to a node."""
        self._write("INSERT INTO events VALUES (?, ?, ?)", [(seconds, node, what)])

    def sums(self) -> dict[str, int]:
        """The totals as the file has them: trained, distinct, replayed, returned examples, and batches."""
        row = self._db.execute(
            "SELECT coalesce(sum(examples * acknowledgements), 0), coalesce(sum(examples), 0),"
            " coalesce(sum(examples * (acknowledgements - 1)), 0), count(*) FROM batches"
        ).fetchone()
        back = self._db.execute("SELECT coalesce(sum(examples), 0) FROM returned").fetchone()
        return {
            "trained_examples": row[0],
            "distinct_examples": row[1],
            "replayed_examples": row[2],
            "distinct_batches": row[3],
            "returned_examples": back[0],
        }

    def returned_and_trained_examples(self) -> int:
        """Examples of the returned deliveries whose batch was trained after all."""
        row = self._db.execute(
            "SELECT coalesce(sum(r.examples), 0) FROM returned r"
            " JOIN batches b ON (b.epoch, b.span, b.number) = (r.epoch, r.span, r.number)"
        ).fetchone()
        return int(row[0])

    def close(self) -> None:
        """Folds the write-ahead log into the file and closes it."""
        self._db.close()

    def _write(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        try:
            with self._db:
                self._db.executemany(statement, rows)
        except sqlite3.Error as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: sqlite3.Error) -> ResourceError:
        return ResourceError(
            f"the ledger cannot be written ({error})", where=str(self.path), remedy="free some disk space"
        )
