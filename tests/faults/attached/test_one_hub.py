"""Processes as torchrun starts them, with `attach` and tables: one hub, which waits for the slow rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.tests.support.jobs.processes import Process, Starter
from shadowsync.tests.support.loops import launch_script
from shadowsync.tests.support.loops.killed_hub import SECONDS, start_ranks
from shadowsync.tests.support.loops.launch_script import STEPS

SCRIPT = Path(launch_script.__file__)
RANKS = 2

pytestmark = pytest.mark.timeout(900)


def launched(starter: Starter, folder: Path, order: str, case: str) -> list[Process]:
    """The ranks of a launch; see the script."""
    return start_ranks(starter, SCRIPT, order, case, str(folder))


def told(folder: Path, name: str) -> list[str]:
    return [(folder / f"{name}-{rank}.txt").read_text() for rank in range(RANKS)]


@pytest.mark.parametrize("order", ["tables", "attach"])
def test_a_loop_and_its_tables_share_the_hub_of_rank_0(starter: Starter, tmp_path: Path, order: str) -> None:
    for process in launched(starter, tmp_path, order, "late"):
        assert process.wait(SECONDS) == 0, process.text()
    assert told(tmp_path, "hubs") == ["1", "0"]
    # The settings are those of attach, whatever came first.
    assert told(tmp_path, "algorithm") == ["ma", "ma"]
    # Rank 0 has waited for all steps of the other one, which began once rank 0 had nothing left to do.
    assert told(tmp_path, "others")[0] == str(STEPS)
    if order == "tables":
        rows = [float(row) for row in told(tmp_path, "rows")[0].strip("[]").split(",")]
        assert rows == [2 * STEPS, STEPS, STEPS, 0]


def test_two_modules_at_once_have_two_hubs(starter: Starter, tmp_path: Path) -> None:
    """The control: the hubs are counted."""
    for process in launched(starter, tmp_path, "tables", "twice"):
        assert process.wait(SECONDS) == 0, process.text()
    assert told(tmp_path, "hubs") == ["2", "0"]


@pytest.mark.parametrize("order", ["tables", "attach"])
def test_a_rank_that_raises_keeps_nobody_waiting(starter: Starter, tmp_path: Path, order: str) -> None:
    host, other = launched(starter, tmp_path, order, "rank 1 raises")
    assert other.wait(SECONDS) == 1
    assert "ZeroDivisionError: mine" in other.text()
    assert "During handling" not in other.text()
    assert host.wait(SECONDS) == 0, host.text()
    assert (tmp_path / "steps-0.txt").read_text() == str(STEPS)


@pytest.mark.matrix
@pytest.mark.no_kill
def test_if_rank_0_raises_its_hub_ends_with_it(starter: Starter, tmp_path: Path) -> None:
    host, other = launched(starter, tmp_path, "tables", "rank 0 raises")
    assert host.wait(SECONDS) == 1
    assert "ZeroDivisionError: mine" in host.text()
    # The other one is told, and does not wait for another hub.
    assert other.wait(SECONDS) == 1
    assert "the embedding nodes are gone, and the rows with them" in other.text()
