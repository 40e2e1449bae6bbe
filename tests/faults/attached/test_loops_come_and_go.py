"""Attached loops are killed one after the other, and others join late: the book adds up, and nothing hangs.

By hand over more: SHADOWSYNC_LOOP_KILLS=100, and SHADOWSYNC_LOOP_KILLS_SEED for other loops.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from shadowsync.tests.support.jobs.processes import Process, Starter, wait_until
from shadowsync.tests.support.loops import endless_loop
from shadowsync.tests.support.loops.killed_hub import start_hub

SCRIPT = Path(endless_loop.__file__)
KILLS = int(os.environ.get("SHADOWSYNC_LOOP_KILLS", "3"))
SEED = int(os.environ.get("SHADOWSYNC_LOOP_KILLS_SEED", "1"))
LOOPS = 4
# Nothing may take longer.
SECONDS = 120.0
START_SECONDS = 180.0

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(600 + 30 * KILLS)]


def _steps(folder: Path, name: str) -> int:
    try:
        return int((folder / f"{name}.txt").read_text(encoding="ascii") or 0)
    except FileNotFoundError:
        return 0


def test_the_book_adds_up(starter: Starter, tmp_path: Path) -> None:
    settings = ("--set", "run.node_timeout_seconds=5", "--set", "sync.duty=0.5")
    hub, address = start_hub(starter, tmp_path, "--until-empty", *settings)
    draw = random.Random(SEED)
    alive: dict[str, Process] = {}

    def join(name: str) -> None:
        alive[name] = starter.fork(name, address, str(tmp_path), script=SCRIPT)

    def trains(name: str) -> bool:
        assert alive[name].poll() is None, alive[name].text()
        return _steps(tmp_path, name) > 0

    for number in range(LOOPS):
        join(f"loop-{number}")
    for name in alive:
        wait_until(lambda name=name: trains(name), f"{name} trains", START_SECONDS)  # type: ignore[misc]
    for number in range(KILLS):
        victim = draw.choice(sorted(alive))
        alive.pop(victim).kill()
        late = f"loop-{LOOPS + number}"
        join(late)
        wait_until(lambda late=late: trains(late), f"{late} trains", START_SECONDS)  # type: ignore[misc]
    (tmp_path / "stop").write_text("", encoding="ascii")
    for loop in alive.values():
        assert loop.wait(SECONDS) == 0, loop.text()
    assert hub.wait(SECONDS) == 0, hub.text()
    _require_whole(json.loads((tmp_path / "book.json").read_text(encoding="utf-8")))


def _require_whole(book: dict[str, Any]) -> None:
    left = [one for one in book["loops"] if one["state"] == "left"]
    died = [one for one in book["loops"] if one["state"] == "died"]
    assert (len(left), len(died)) == (LOOPS, KILLS)
    assert all(one["synchronized"] == one["steps"] > 0 for one in left)
    assert all(0 <= one["synchronized"] <= one["steps"] for one in died)
    for samples in book["samples"]:
        assert samples["granted"] == samples["finished"] + samples["returned"] + samples["held"]
    assert any(samples["returned"] for samples in book["samples"]), "the control: something was lost"
