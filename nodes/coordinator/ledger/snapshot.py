"""The snapshot of a job's state in the ledger's file.

It replaces all earlier changes of SNAPSHOT_KINDS in the journal. Each span that was handed out is a row,
written only if it has changed; all else is one row. Each row has a checksum.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from typing import Final

from .records import SNAPSHOT_KINDS, SnapshotDamagedError, StoredSnapshot

IN_SNAPSHOT: Final = f"({', '.join(map(repr, SNAPSHOT_KINDS))})"
# Tables that the first snapshot makes.
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS snapshot (last_change INTEGER PRIMARY KEY, checksum INTEGER, body BLOB)",
    "CREATE TABLE IF NOT EXISTS snapshot_spans (place INTEGER PRIMARY KEY, checksum INTEGER, body BLOB)",
    # A snapshot has all changes but these, which are few.
    f"CREATE INDEX IF NOT EXISTS not_booked ON journal (id) WHERE kind NOT IN {IN_SNAPSHOT}",
)


def write_snapshot(database: sqlite3.Connection, snapshot: StoredSnapshot) -> None:
    """Replace the snapshot by one of all changes so far, in the caller's transaction."""
    for statement in _TABLES:
        database.execute(statement)
    (last,) = database.execute("SELECT max(id) FROM journal").fetchone()
    database.execute("DELETE FROM snapshot")
    database.execute("INSERT INTO snapshot VALUES (?, ?, ?)", _row(last, snapshot.body))
    rows = (_row(place, body) for place, body in snapshot.spans)
    database.executemany("INSERT OR REPLACE INTO snapshot_spans VALUES (?, ?, ?)", rows)


def read_snapshot(database: sqlite3.Connection) -> tuple[int, StoredSnapshot] | None:
    """Return the id of a snapshot's last change, and the snapshot, if any.

    Raises SnapshotDamagedError, also while its spans are read.
    """
    try:
        if not _has_snapshot(database):
            return None
        row = database.execute("SELECT last_change, checksum, body FROM snapshot").fetchone()
        if row is None:
            return None
        last, body = _checked(row)
        return last, StoredSnapshot(body, _spans(database))
    except sqlite3.Error as error:
        raise SnapshotDamagedError(str(error)) from error


def forget_snapshot(database: sqlite3.Connection) -> None:
    """Remove the snapshot, in the caller's transaction."""
    if _has_snapshot(database):
        database.execute("DELETE FROM snapshot")
        database.execute("DELETE FROM snapshot_spans")


def _has_snapshot(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT 1 FROM sqlite_master WHERE name = 'snapshot'").fetchone() is not None


def _spans(database: sqlite3.Connection) -> Iterator[tuple[int, bytes]]:
    try:
        for row in database.execute("SELECT place, checksum, body FROM snapshot_spans ORDER BY place"):
            yield _checked(row)
    except sqlite3.Error as error:
        raise SnapshotDamagedError(str(error)) from error


def _row(number: int, body: bytes) -> tuple[int, int, bytes]:
    return number, _checksum(number, body), body


def _checked(row: tuple[int, int, bytes]) -> tuple[int, bytes]:
    number, checksum, body = row
    if type(body) is not bytes or _checksum(number, body) != checksum:
        raise SnapshotDamagedError(f"row {number} has another checksum")
    return number, body


def _checksum(number: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(b"%d" % number))
