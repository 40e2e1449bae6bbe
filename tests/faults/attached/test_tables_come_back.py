"""A hub that is killed under loops with tables: they go on with the rows of its newest checkpoint."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import shadowsync
import torch
from shadowsync.attached.hub.checkpoint import TABLES
from shadowsync.pipeline.errors import ClusterError
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.processes import Starter, wait_until
from shadowsync.tests.support.loops import tables_script
from shadowsync.tests.support.loops.attached_loops import hub, in_threads, small_loop
from shadowsync.tests.support.loops.killed_hub import SECONDS, KilledHub, await_tables_checkpoint, notice_soon
from shadowsync.watch.status import read_status

ROWS = 4
OFTEN = ("--checkpoint-every", "0.2")

pytestmark = pytest.mark.timeout(900)


def joined(address: str, rows: int = ROWS, **more: Any) -> shadowsync.Embeddings:
    settings: dict[str, Any] = {"optimizer": "sgd", "lr": 1.0, "timeout_seconds": SECONDS} | more
    return shadowsync.Embeddings({"shared": rows}, 2, join=address, **settings)


def add(tables: shadowsync.Embeddings, row: int, times: int = 1) -> None:
    """Add 1 to a row so many times, a backward pass each."""
    for _ in range(times):
        (-tables(torch.tensor([row]))).sum().backward()
    tables.flush()


class Kept:
    """The checkpoint of a hub's tables as of now: what would be there if it died before the next one."""

    def __init__(self, own: KilledHub, copy: Path) -> None:
        self._own, self._copy = own, copy
        await_tables_checkpoint(own.place)
        own.process.suspend()
        stopped = psutil.Process(own.process.pid)
        try:
            wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, "it stands still", SECONDS)
            shutil.copytree(own.place / TABLES, copy)
        finally:
            own.process.resume()

    def put_back(self) -> None:
        """Forget the checkpoints that the hub has written since; it is dead."""
        shutil.rmtree(self._own.place / TABLES)
        shutil.move(self._copy, self._own.place / TABLES)


def test_a_loop_with_tables_goes_on_from_the_newest_checkpoint(
    starter: Starter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = KilledHub(starter, tmp_path, "--embedding-nodes", "2", *OFTEN, "--set", "sync.duty=1")
    model, optimizer, step = small_loop()
    with joined(own.address) as tables, shadowsync.attach(model, optimizer, join=own.address) as sync:
        first = tables.vectors("shared")

        def added() -> list[float]:
            return (tables.vectors("shared") - first)[:, 0].round(decimals=4).tolist()

        add(tables, 1, 5)
        kept = Kept(own, tmp_path / "kept")
        before = tables(torch.tensor([2]))
        add(tables, 1, 3)
        own.kill()
        kept.put_back()
        own.come_back(*OFTEN)
        step()
        # What the checkpoint has is there; the three passes after it are lost, and said to be.
        assert added() == [0, 5, 0, 0]
        assert tables.metrics()["lost_pushes"] == 3
        (said,) = [one for one in caplog.records if "the hub is back" in one.message]
        assert said.levelno == logging.ERROR
        assert said.message == "the hub is back; lost: 3 of 8 backward passes of this module"
        # A pass of rows that were read before the death trains those that came back.
        (-before).sum().backward()
        add(tables, 1, 2)
        assert added() == [0, 7, 1, 0]
        # The control: with a checkpoint of all that was done nothing more is lost.
        await_tables_checkpoint(own.place)
        own.kill()
        own.come_back()
        assert added() == [0, 7, 1, 0]
        assert tables.metrics()["lost_pushes"] == 3
        wait_until(lambda: sync.metrics()["lost"] == 0, "the loop is back", SECONDS)
        step()
    book = own.ended()
    assert book["modules"] == [{"name": "tables-0", "state": "left", "passes": 11, "lost": 3, "why": ""}]
    (loop,) = book["loops"]
    assert (loop["state"], loop["steps"], loop["synchronized"]) == ("left", 2, 2)
    assert "| tables-0 | left | 11 | 3 |" in own.process.text()


def test_two_loops_in_the_middle_of_their_passes(starter: Starter, tmp_path: Path) -> None:
    """What is in the rows is what was made and not lost, to the pass."""
    passes = 20
    own = KilledHub(starter, tmp_path, *OFTEN, "--set", "sync.algorithm=none", node_timeout_seconds=8)
    there, killed = threading.Barrier(3), threading.Event()

    def loop(row: int) -> tuple[float, int, dict[str, float]]:
        with joined(own.address) as tables:
            first = tables.vectors("shared")
            there.wait(SECONDS)
            add(tables, row, passes)
            there.wait(SECONDS)
            made = passes
            # However late the kill comes, it meets the passes, and others come after it.
            while not killed.is_set():
                (-tables(torch.tensor([row]))).sum().backward()
                made += 1
            add(tables, row, passes)
            found = float((tables.vectors("shared") - first)[row, 0])
            return found, made + passes, tables.metrics()

    def fault() -> None:
        there.wait(SECONDS)
        await_tables_checkpoint(own.place)
        there.wait(SECONDS)
        own.kill()
        killed.set()
        own.come_back()

    *loops, _ = in_threads(partial(loop, 0), partial(loop, 1), fault)
    book = {one["name"]: one for one in own.ended()["modules"]}
    assert {one["state"] for one in book.values()} == {"left"}
    assert sorted((one["passes"], one["lost"]) for one in book.values()) == sorted(
        (made, counts["lost_pushes"]) for _, made, counts in loops
    )
    for value, made, counts in loops:
        # A pass adds 1, and the sum of thousands in float32 is that exact.
        assert value == pytest.approx(made - counts["lost_pushes"], abs=0.1)


def test_without_a_checkpoint_the_rows_are_gone_and_it_is_said(starter: Starter, tmp_path: Path) -> None:
    # It would end by itself as soon as tables-0 has died.
    own = KilledHub(starter, tmp_path, "--set", "sync.algorithm=none", until_empty=False)
    with joined(own.address) as tables:
        add(tables, 1)
        own.kill()
        own.come_back()
        for _ in range(2):
            with pytest.raises(
                ClusterError,
                match=r"hub/tables: the rows of tables-0 died with the hub, which had written no checkpoint"
                r" .*; make a new module, .* give the hub --checkpoint-every SECONDS",
            ):
                tables(torch.tensor([1]))
        # A new module begins with new rows, the control; the old one does not take those for its own.
        with joined(own.address) as new:
            add(new, 1)
            with pytest.raises(ClusterError, match="had written no checkpoint"):
                tables.vectors("shared")
    states = [(one["name"], one["state"], one["passes"], one["lost"]) for one in own.ended()["modules"]]
    assert states == [("tables-0", "died", 1, 1), ("tables-1", "left", 1, 0)]


def test_other_tables_and_another_hub_are_refused(starter: Starter, tmp_path: Path) -> None:
    own = KilledHub(starter, tmp_path, "--set", "sync.algorithm=none", *OFTEN)
    with joined(own.address) as tables:
        add(tables, 1)
        await_tables_checkpoint(own.place)
        own.kill()
        # The checkpoint has other settings than a module that begins.
        own.come_back()
        with pytest.raises(
            shadowsync.AttachError, match=r"tables\.shared\.rows: .* wants 5, .* the checkpoint has 4"
        ):
            joined(own.address, ROWS + 1)
        own.kill()
        own.be_another()
        with pytest.raises(ClusterError, match=r"another one than that .* shadowsync hub --recover DIR"):
            tables(torch.tensor([1]))
        with (
            joined(own.address, ROWS + 1),
            pytest.raises(
                shadowsync.AttachError, match=r"tables\.shared\.rows: .* wants 4, .* of tables-\d has 5"
            ),
        ):
            tables(torch.tensor([1]))
    # The one whose tables it had has left, so the hub ends by itself.
    assert [(one["name"], one["state"]) for one in own.ended()["modules"]] == [
        ("tables-0", "died"),
        ("tables-1", "left"),
    ]


@pytest.mark.matrix
def test_a_hub_that_does_not_come_back_is_waited_for_so_long(
    starter: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice_soon(monkeypatch)
    own = KilledHub(starter, tmp_path, "--set", "sync.algorithm=none")
    with joined(own.address, hub_wait_seconds=1.0) as tables:
        add(tables, 1)
        own.kill()
        with pytest.raises(ClusterError, match=r"no hub that has them came to tcp://.* within 1 s"):
            tables(torch.tensor([1]))


@pytest.mark.matrix
def test_a_module_that_was_declared_dead_and_lives_comes_back(starter: Starter, tmp_path: Path) -> None:
    """Its process is stopped for longer than the hub's patience; the rows are still there."""
    with hub(sync__algorithm="none", run__node_timeout_seconds=4.0) as own, joined(own.endpoint) as reader:
        first = reader.vectors("shared")
        loop = starter.fork("1", own.endpoint, str(tmp_path), script=Path(tables_script.__file__))
        steps = tmp_path / "steps-1.txt"

        def events() -> list[str]:
            text = said("top", "--join", own.endpoint, "--once", "--json")
            assert loop.poll() is None, loop.text()
            found = read_status(json.loads(text)).incidents
            return [one.what for one in found if one.node == "tables-1"]

        def made() -> int:
            return int(steps.read_text()) if steps.exists() else 0

        wait_until(lambda: made() > 3, "it trains", SECONDS)
        loop.signal(signal.SIGSTOP)
        try:
            wait_until(lambda: events()[-1] == "was silent for 4 s", "it is declared dead", SECONDS)
        finally:
            loop.signal(signal.SIGCONT)
        wait_until(lambda: any(one.startswith("came back") for one in events()), "it is back", SECONDS)
        before = made()
        wait_until(lambda: made() > before + 3, "it trains on", SECONDS)
        loop.kill()
        loop.wait(SECONDS)
        added = float((reader.vectors("shared") - first)[2, 0])
    module = present(own.book).modules[1]
    # At most what was on its way when it was stopped is lost; and none of its numbers was taken for another.
    assert module.lost <= 1
    assert added >= made() - module.lost > before
