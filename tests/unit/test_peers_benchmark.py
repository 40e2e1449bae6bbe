"""The comparison with other systems: precision, rounds, tables; the peers are small scripts here."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import shadowsync
import torch

ROOT = Path(shadowsync.__file__).resolve().parent
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("an installed package has no benchmarks beside it", allow_module_level=True)

from shadowsync.benchmarks import peers  # noqa: E402
from shadowsync.benchmarks.own_runs import JobFailed, steady  # noqa: E402
from shadowsync.benchmarks.peer_abilities import ABILITIES, SYSTEMS, abilities_table  # noqa: E402
from shadowsync.benchmarks.peer_list import PEERS, PeerFailed, pythons, read_figures  # noqa: E402
from shadowsync.benchmarks.peer_table import goals, readme_table, tables  # noqa: E402
from shadowsync.benchmarks.with_precision import NotSet, environment  # noqa: E402

# What a process finds that a script starts.
TELL = """
import subprocess, sys
ask = "import torch; print(torch.get_float32_matmul_precision(), torch.is_autocast_enabled('cpu'))"
subprocess.run([sys.executable, "-c", ask], check=True)
"""
# Enough of torch for a process to take a precision, in no time.
FAKE_TORCH = "set_float32_matmul_precision = print"
# A harness script: its speed is the batch, and it notes each of its runs; it fails while a file says so.
FAKE = """
import json, sys, pathlib
here = pathlib.Path(__file__).parent
with (here / "runs").open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if (here / "broken").exists():
    sys.exit("no such thing as a peer")
batch = int(sys.argv[sys.argv.index("--batch") + 1])
print("noise")
print(json.dumps({"ex_s": batch * 100, "cpu_s_per_M": 40.0, "ok": True}))
"""


@pytest.mark.parametrize(("way", "found"), [("medium", "medium False"), ("autocast", "highest True")])
def test_the_processes_of_a_script_take_the_precision(tmp_path: Path, way: str, found: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(TELL, encoding="utf-8")
    with environment(way, os.environ) as variables:
        done = subprocess.run(
            [sys.executable, str(script)], env=variables, capture_output=True, text=True, check=True
        )
    assert done.stdout.strip() == found
    assert f"{torch.get_float32_matmul_precision()} {torch.is_autocast_enabled('cpu')}" == "highest False"


def test_a_script_that_ignores_the_precision_is_no_measurement(tmp_path: Path) -> None:
    """Isolated, Python takes nothing from PYTHONPATH; one process alone is no peer with workers either."""
    (tmp_path / "torch.py").write_text(FAKE_TORCH, encoding="utf-8")
    given = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for flags, took in ((["-I"], 0), (["-B"], 1), (["-B", "-B"], 2)):
        with contextlib.ExitStack() as stack:
            if took < 2:
                stack.enter_context(pytest.raises(NotSet, match=f"{took} processes"))
            variables = stack.enter_context(environment("medium", given))
            for flag in flags:
                subprocess.run([sys.executable, flag, "-c", "pass"], env=variables, check=True)
    with pytest.raises(ValueError, match="float32, medium or autocast"), environment("half", os.environ):
        pass
    with environment("float32", given) as variables:
        assert variables == given


@pytest.fixture
def harness(tmp_path: Path) -> Path:
    folder = tmp_path / "harness"
    folder.mkdir()
    (folder / "p2_torch.py").write_text(FAKE, encoding="utf-8")
    return folder


def _given(harness: Path, **others: Any) -> argparse.Namespace:
    usual: dict[str, Any] = {
        "harness": harness,
        "python": [],
        "rounds": 2,
        "batches": [64, 128],
        "only": "torch_ddp,torch_hogwild",
        "precisions": "float32",
        "warm": 1.0,
        "window": 2.0,
        "examples": 1000,
        "shipped_examples": 1000,
        "shipped_precision": "bfloat16",
        "data": harness,
        "out": harness / "out.json",
    }
    return argparse.Namespace(**(usual | others))


def _runs(harness: Path) -> list[str]:
    lines = (harness / "runs").read_text("utf-8").splitlines()
    return [" ".join(word for word in line.split() if not word.startswith("--")) for line in lines]


def test_rounds_alternate_and_go_on_where_they_stopped(harness: Path) -> None:
    peers.measure(_given(harness, rounds=1))
    first = ["ddp 64 1.0 2.0", "hogwild 64 1.0 2.0", "ddp 128 1.0 2.0", "hogwild 128 1.0 2.0"]
    assert _runs(harness) == first
    rows = peers.measure(_given(harness))
    assert _runs(harness) == [*first, *reversed(first)]
    assert {(row["batch"], row["examples_per_second"]) for row in rows} == {(64, 6400.0), (128, 12800.0)}
    assert peers.read_rows(harness / "out.json") == rows
    with pytest.raises(SystemExit, match="take another --out"):
        peers.measure(_given(harness, window=3.0))


def test_what_failed_is_told_and_tried_again(harness: Path) -> None:
    (harness / "broken").touch()
    rows = peers.measure(_given(harness, rounds=1, batches=[64]))
    assert all("no such thing as a peer" in row["failed"] for row in rows)
    assert "no such thing as a peer" in tables(rows)
    (harness / "broken").unlink()
    again = peers.measure(_given(harness, rounds=1, batches=[64]))
    assert [row["examples_per_second"] for row in again] == [6400.0, 6400.0]
    assert len(_runs(harness)) == 4


def test_names_and_pythons_that_are_not_there_are_refused(harness: Path) -> None:
    found = peers.all_runs(_given(harness, precisions="float32,medium"))
    assert {"torch_ddp", "torch_ddp+medium", "shadowsync", "shadowsync_shipped"} <= set(found)
    assert set(peers.chosen(found, "torch_pma*")) == {
        "torch_pma5",
        "torch_pma30",
        "torch_pma5+medium",
        "torch_pma30+medium",
    }
    with pytest.raises(SystemExit, match="there are torch_hogwild_fused"):
        peers.chosen(found, "torch_hogwidl")
    assert not any(name.startswith("torchrec") for name in found)
    assert pythons(["torchrec=a"], {"PY_DLRM": "b"}) == {
        "torchrec": "a",
        "dlrm": "b",
        "torch": sys.executable,
    }
    with pytest.raises(SystemExit, match="one of dlrm, hivemind"):
        pythons(["torchrek=a"], {})


def test_figures_are_those_of_the_last_line_that_has_them() -> None:
    printed = '{"ex_s": 1, "cpu_s_per_M": 2}\n{"ex_s": 3, "cpu_s_per_M": 4}\n{"other": 1}\n'
    assert read_figures(printed) == {"examples_per_second": 3.0, "cpu_seconds_per_million": 4.0}
    with pytest.raises(PeerFailed, match="no line of JSON"):
        read_figures("nothing")


def _row(name: str, number: int, speed: float, cost: float, batch: int = 512) -> dict[str, Any]:
    return {
        "name": name,
        "batch": batch,
        "round": number,
        "examples_per_second": speed,
        "cpu_seconds_per_million": cost,
    }


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


def test_readme_takes_the_best_of_a_system_and_a_dash_for_what_is_missing() -> None:
    rows = [_row("torch_hogwild", 0, 10, 50), _row("torch_hogwild_fused", 0, 20, 40)]
    rows += [_row("torch_hogwild+medium", 0, 30, 30), _row("shadowsync_shipped", 0, 70, 7)]
    lines = readme_table(rows).splitlines()
    hogwild = SYSTEMS[1].label
    assert f"| {hogwild} | 20 / 30 | 40 / 30 |" in lines
    assert "| **shadowsync** | - / 70 | - / 7 |" in lines


def test_every_peer_is_of_one_system_and_the_page_has_what_they_can_do() -> None:
    named = [name for system in SYSTEMS for name in system.peers]
    assert sorted(named) == sorted([*PEERS, "shadowsync"])
    assert all(len(system.abilities) == len(ABILITIES) for system in SYSTEMS)
    assert abilities_table() in (ROOT / "docs" / "comparison.md").read_text("utf-8")


def test_the_steady_part_leaves_out_warm_up_and_end() -> None:
    curve = [
        (0.5, 0.0),
        (1.0, 1.0),
        (1.5, 7.0),
        (2.0, 10.0),
        (2.5, 20.0),
        (3.0, 30.0),
        (3.5, 3.0),
        (4.0, 0.0),
    ]
    both = {"trainer-0": curve, "trainer-1": curve}
    assert steady(both, 0.5) == 40.0
    assert steady(both, 0.0) != 40.0
    with pytest.raises(JobFailed, match=r"less than 5\.5 seconds"):
        steady(both, 5.0)
    with pytest.raises(JobFailed):
        steady({}, 0.5)


def test_the_rows_of_a_file_are_plain_json(harness: Path) -> None:
    peers.measure(_given(harness, rounds=1, batches=[64]))
    kept = json.loads((harness / "out.json").read_text("utf-8"))
    assert kept["results"]["settings"]["window"] == 2.0
    assert kept["hardware"]
