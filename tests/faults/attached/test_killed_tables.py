"""Loops with shared tables as processes: one is killed, the hub is killed, and as torchrun starts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import shadowsync
import torch
from shadowsync.pipeline.errors import ClusterError
from shadowsync.tests.support.jobs.processes import Starter, wait_until
from shadowsync.tests.support.loops import tables_script
from shadowsync.tests.support.loops.killed_hub import (
    SECONDS,
    await_tables_checkpoint,
    notice_soon,
    start_hub,
    start_ranks,
)

SCRIPT = Path(tables_script.__file__)

pytestmark = pytest.mark.timeout(900)


SETTINGS: dict[str, Any] = {"optimizer": "sgd", "lr": 1.0, "timeout_seconds": 300.0, "hub_wait_seconds": 0.0}
FIRST = (
    "--until-empty",
    "--embedding-nodes",
    "2",
    "--set",
    "run.node_timeout_seconds=5",
    "--set",
    "sync.algorithm=none",
)


def steps_of(folder: Path, index: int) -> int:
    path = folder / f"steps-{index}.txt"
    return int(path.read_text()) if path.exists() else 0


def test_rows_outlive_a_killed_loop_and_die_with_the_hub(
    starter: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice_soon(monkeypatch)
    hub, address = start_hub(starter, tmp_path, *FIRST)
    with shadowsync.Embeddings({"shared": tables_script.ROWS}, 2, join=address, **SETTINGS) as own:
        first = own.vectors("shared")
        loop = starter.fork("1", address, str(tmp_path), script=SCRIPT)
        wait_until(lambda: steps_of(tmp_path, 1) > 3 or loop.poll() is not None, "it trains", SECONDS)
        assert loop.poll() is None, loop.text()
        loop.kill()
        loop.wait(SECONDS)
        # Each backward pass of the dead loop added 1 to both of its rows, or did not reach all nodes.
        added = (own.vectors("shared") - first)[:, 0].round()
        assert added[2] >= steps_of(tmp_path, 1) > 3
        assert abs(added[0] - added[2]) <= 1
        assert added[[1, 3]].abs().max() == 0
        (-own(torch.tensor([3]))).sum().backward()
        assert (own.vectors("shared") - first)[3, 0] == pytest.approx(1)
        hub.kill()
        hub.wait(SECONDS)
        with pytest.raises(ClusterError, match=r"the embedding nodes are gone, .* the hub was gone"):
            own(torch.tensor([3]))


@pytest.mark.matrix
def test_a_hub_that_takes_the_place_of_a_dead_one_has_the_rows_of_its_checkpoint(
    starter: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice_soon(monkeypatch)
    place = tmp_path / "hub"
    often = ("--checkpoint-every", "0.2")
    hub, address = start_hub(starter, tmp_path, *FIRST, *often, "--dir", str(place))
    with shadowsync.Embeddings({"shared": tables_script.ROWS}, 2, join=address, **SETTINGS) as own:
        first = own.vectors("shared")
        (-own(torch.tensor([3]))).sum().backward()
        own.flush()
        await_tables_checkpoint(place)
        hub.kill()
        hub.wait(SECONDS)
        with pytest.raises(ClusterError, match="--resume DIR"):
            own(torch.tensor([3]))
    hub, address = start_hub(starter, tmp_path, "--until-empty", "--recover", str(place))
    with shadowsync.Embeddings(join=address, timeout_seconds=300.0) as again:
        # Rows of a new hub have the same first values: only what was trained tells them apart.
        assert (again.vectors("shared") - first)[:, 0].tolist() == pytest.approx([0, 0, 0, 1], abs=1e-5)
    assert hub.wait(SECONDS) == 0, hub.text()


def test_processes_that_torchrun_started_share_the_tables_of_rank_0(starter: Starter, tmp_path: Path) -> None:
    for loop in start_ranks(starter, SCRIPT, "env://", str(tmp_path), by_rank=True):
        assert loop.wait(SECONDS) == 0, loop.text()
    tables = [[float(x) for x in (tmp_path / f"table-{at}.txt").read_text().split()] for at in range(2)]
    # First values are within 0.05. Whoever read last saw the steps of both in row 0; each its own.
    assert max(table[0] for table in tables) == pytest.approx(2 * tables_script.STEPS, abs=0.06)
    for at, table in enumerate(tables):
        assert table[1 + at] == pytest.approx(tables_script.STEPS, abs=0.06)
        assert table[3] == pytest.approx(0.0, abs=0.06)
