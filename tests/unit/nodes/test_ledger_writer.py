"""The ledger's file on a thread of its own: in order, and with nobody waiting but who wants to."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from shadowsync.nodes.coordinator.ledger.store import LedgerStore
from shadowsync.nodes.coordinator.ledger.writer import LedgerWriter
from shadowsync.pipeline.errors import ResourceError


def test_the_loop_goes_on_while_the_disk_does_not(tmp_path: Path) -> None:
    async def main() -> None:
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

    asyncio.run(asyncio.wait_for(main(), 60.0))


def test_what_was_submitted_is_done_although_its_callers_are_cancelled(tmp_path: Path) -> None:
    """One that runs, and one that still waits for its turn."""

    async def main() -> None:
        writer = LedgerWriter(LedgerStore(tmp_path / "ledger.sqlite"))
        begun, go_on, done = threading.Event(), threading.Event(), list[str]()

        def slow(_: LedgerStore) -> None:
            begun.set()
            assert go_on.wait(60.0)
            done.append("slow")

        callers = [asyncio.ensure_future(writer.run(slow))]
        callers.append(asyncio.ensure_future(writer.run(lambda _: done.append("waiting"))))
        await asyncio.to_thread(begun.wait, 60.0)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        assert all(caller.cancelled() for caller in callers)
        go_on.set()
        await writer.close()
        assert done == ["slow", "waiting"]

    asyncio.run(asyncio.wait_for(main(), 60.0))


def test_events_are_there_before_what_comes_after_them(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def main() -> None:
        writer = LedgerWriter(LedgerStore(path))
        for number in range(20):
            writer.event(float(number), "trainer-0", f"event {number}")
        await writer.close()

    asyncio.run(main())
    database = sqlite3.connect(path)
    found = database.execute("SELECT what FROM events ORDER BY rowid").fetchall()
    database.close()
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
