"""The ledger of a hub: what another hub needs to take its place."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from ...pipeline.errors import ClusterError, ResourceError

LEDGER_FILE: Final = "hub.sqlite"
# Keys of what is stored; those of loops, modules and streams end with their names.
BOUND, ENDED, LAYOUT = "bound", "ended", "layout"
LOOP_PREFIX, MODULE_PREFIX, STREAM_PREFIX = "loop/", "module/", "stream/"


class HubLedger:
    """One SQLite file of values by key, written by a thread of its own.

    A write that was awaited survives the death of the process, but perhaps not that of the machine. Belongs
    to the hub's loop. Raises ResourceError if the file cannot be written.
    """

    def __init__(self, folder: Path, *, new: bool) -> None:
        self._path = folder / LEDGER_FILE
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hub ledger")
        self._written: dict[str, str] = {}
        try:
            if new:
                # It has the loops' tokens: only this user may read it.
                self._path.touch(0o600)
            self._db = sqlite3.connect(self._path, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            if new:
                self._db.execute("CREATE TABLE state (key TEXT PRIMARY KEY, body TEXT) WITHOUT ROWID")
        except (OSError, sqlite3.Error) as error:
            raise ResourceError(f"cannot be written ({error})", where=str(self._path)) from error

    @classmethod
    def open(cls, folder: Path) -> HubLedger:
        """Open the ledger of a dead hub.

        Raises ClusterError if there is none, or if the hub has ended.
        """
        if not (folder / LEDGER_FILE).is_file():
            raise ClusterError(
                "is not the folder of a hub", where=str(folder), remedy="give that of --dir, such as runs/hub"
            )
        ledger = cls(folder, new=False)
        if ledger.read().get(ENDED):
            ledger.close()
            raise ClusterError(
                "the hub of this folder has ended", where=str(folder), remedy="start a new hub"
            )
        return ledger

    def read(self) -> dict[str, Any]:
        """Return everything by key; raises ResourceError."""
        try:
            rows = self._db.execute("SELECT key, body FROM state").fetchall()
            return {key: json.loads(body) for key, body in rows}
        except (sqlite3.Error, ValueError) as error:
            raise ResourceError(f"cannot be read ({error})", where=str(self._path)) from error

    async def write(self, values: Mapping[str, Any]) -> None:
        """Store values of JSON that have changed, in one transaction."""
        texts = {key: json.dumps(value) for key, value in values.items()}
        changed = {key: text for key, text in texts.items() if self._written.get(key) != text}
        if changed:
            self._written.update(changed)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._store, changed)

    def close(self) -> None:
        """Finish the writes, and close the file."""
        self._thread.shutdown()
        self._db.close()

    def _store(self, texts: Mapping[str, str]) -> None:
        try:
            with self._db:
                self._db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", list(texts.items()))
        except sqlite3.Error as error:
            raise ResourceError(f"cannot be written ({error})", where=str(self._path)) from error
