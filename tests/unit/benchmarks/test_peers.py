"""The comparison with other systems: its figures are those of the pairs, and of the steady part of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import shadowsync

if not (Path(shadowsync.__file__).resolve().parent / "benchmarks").is_dir():
    pytest.skip("an installed package has no benchmarks beside it", allow_module_level=True)

from shadowsync.benchmarks.peers.attached_peers import BATCH, cell, figures
from shadowsync.benchmarks.peers.own_runs import JobFailed, steady
from shadowsync.benchmarks.peers.peer_list import PeerFailed, read_figures
from shadowsync.benchmarks.peers.peer_table import goals, tables


def _row(name: str, number: int, speed: float, cost: float, batch: int = 512) -> dict[str, Any]:
    return {
        "name": name,
        "batch": batch,
        "round": number,
        "examples_per_second": speed,
        "cpu_seconds_per_million": cost,
    }


def test_figures_are_those_of_the_last_line_that_has_them() -> None:
    printed = '{"ex_s": 1, "cpu_s_per_M": 2}\n{"ex_s": 3, "cpu_s_per_M": 4}\n{"other": 1}\n'
    assert read_figures(printed) == {"examples_per_second": 3.0, "cpu_seconds_per_million": 4.0}
    with pytest.raises(PeerFailed, match="no line of JSON"):
        read_figures("nothing")


def test_ratios_are_of_the_pairs_and_not_of_the_medians() -> None:
    """The machine drifts: each round is 10 times the last. Medians of unequal rounds would give 10."""
    rows = [_row("torch_ddp", number, 10.0**number, 40.0) for number in range(3)]
    rows += [_row("shadowsync", number, 2 * 10.0**number, 20.0) for number in (1, 2)]
    (line,) = [line for line in tables(rows).splitlines() if line.startswith("| torch_ddp")]
    assert line == "| torch_ddp | 10 (1 to 100, 3) | 40.0 | 2.00 (2.00 to 2.00); CPU 0.50 |"


def test_goals_are_met_or_not_by_speed_and_by_cost() -> None:
    rows = [_row("rpc_push_uv", 0, 10, 100), _row("torch_hogwild_fused", 0, 100, 40)]
    good = goals([*rows, _row("shadowsync", 0, 85, 85)])
    assert [line.rpartition(": ")[2] for line in good] == ["met", "met"]
    bad = goals([*rows, _row("shadowsync", 0, 84, 86)])
    assert [line.rpartition(": ")[2] for line in bad] == ["**not met**", "**not met**"]
    assert goals(rows) == []


def test_the_steady_part_leaves_out_warm_up_and_end() -> None:
    ends = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    curve = list(zip(ends, [0.0, 1.0, 7.0, 10.0, 20.0, 30.0, 3.0, 0.0], strict=True))
    both = {"trainer-0": curve, "trainer-1": curve}
    assert steady(both, 0.5) == 40.0
    assert steady(both, 0.0) != 40.0
    with pytest.raises(JobFailed, match=r"less than 5\.5 seconds"):
        steady(both, 5.0)
    with pytest.raises(JobFailed):
        steady({}, 0.5)


def test_figures_of_loops_are_means_where_all_of_them_were() -> None:
    fast = {
        "steps": 20,
        "seconds": 2.0,
        "rounds": 3,
        "losses": [[0, 0.0, 2.0], [10, 1.0, 1.0], [20, 2.0, 0.5]],
    }
    slow = {"steps": 10, "seconds": 4.0, "rounds": 1, "losses": [[0, 0.0, 2.0], [10, 3.0, 1.2]]}
    row = figures([fast, slow])
    assert row["examples_per_second"] == BATCH * (20 / 2.0 + 10 / 4.0)
    assert row["curve"] == [[0, 0.0, 2.0], [10, 2.0, 1.1]]
    assert row["rounds"] == [3, 1]
    assert cell([row], at=10, loss=1.5) == f"{BATCH * 12.5:,.0f}; 1.100; 2.0"
    # What one of two runs did not reach is no figure, and a run that failed is not counted.
    assert cell([row, figures([fast])], at=20, loss=0.6).endswith("; -; -")
    assert cell([row, {"failed": "no answer"}], at=10, loss=1.5) == cell([row], at=10, loss=1.5)
    assert cell([{"failed": "no answer"}], at=10, loss=1.5) == "failed"
