"""Attached loops as processes: at a hub, where one is killed, and as torchrun starts them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from shadowsync.tests.support.jobs.processes import Starter, wait_until
from shadowsync.tests.support.loops import attached_script
from shadowsync.tests.support.loops.killed_hub import SECONDS, start_hub, start_ranks

SCRIPT = Path(attached_script.__file__)
LOOPS = 3

pytestmark = pytest.mark.timeout(900)


def test_a_killed_loop_is_in_the_book_and_its_samples_go_to_the_others(
    starter: Starter, tmp_path: Path
) -> None:
    settings = ("--set", "run.node_timeout_seconds=4", "--set", "sync.duty=0.5")
    hub, address = start_hub(starter, tmp_path, "--until-empty", *settings)
    loops = [starter.fork(str(at), address, str(LOOPS), str(tmp_path), script=SCRIPT) for at in range(LOOPS)]
    progress = tmp_path / "loop-0.txt"
    wait_until(
        lambda: (
            (progress.exists() and progress.read_text() == str(attached_script.HELD))
            or loops[0].poll() is not None
        ),
        "it trains",
        SECONDS,
    )
    assert loops[0].poll() is None, loops[0].text()
    loops[0].kill()
    for loop in loops[1:]:
        assert loop.wait(SECONDS) == 0, loop.text()
    assert hub.wait(SECONDS) == 0, hub.text()

    found = json.loads((tmp_path / "book.json").read_text())
    states = [one["state"] for one in found["loops"]]
    assert sorted(states) == ["died", "left", "left"]
    for one in found["loops"]:
        if one["state"] == "left":
            # Others finished, and all that they trained is synchronized.
            assert one["synchronized"] == one["steps"] > 0
            assert one["rounds"] > 0
        else:
            # What died with it is in the book: the last of its heartbeats says so.
            assert "was silent" in one["why"]
            assert 0 <= one["synchronized"] <= one["steps"] <= attached_script.HELD
    (samples,) = found["samples"]
    size = attached_script.EXAMPLES
    assert samples["returned"] > 0
    assert samples["finished"] == size
    assert samples["granted"] == samples["finished"] + samples["returned"]
    assert samples["held"] == 0
    survivors = [
        int(text) for at in range(1, LOOPS) for text in (tmp_path / f"seen-{at}.txt").read_text().split()
    ]
    # Each once, but for those that the dead one had finished.
    assert len(survivors) == len(set(survivors))
    missing = set(range(size)) - set(survivors)
    assert len(missing) <= attached_script.HELD * attached_script.BATCH
    assert "not synchronized" in hub.text()


def test_processes_that_torchrun_started_need_no_hub(starter: Starter, tmp_path: Path) -> None:
    """Rank 0 hosts it, and ends when the other one has left; each example is in one of the two."""
    for loop in start_ranks(starter, SCRIPT, "env://", "2", str(tmp_path), by_rank=True):
        assert loop.wait(SECONDS) == 0, loop.text()
    seen = [Counter((tmp_path / f"seen-{at}.txt").read_text().split()) for at in range(2)]
    assert all(seen)
    assert sum(seen, Counter()) == Counter(map(str, range(attached_script.EXAMPLES)))
