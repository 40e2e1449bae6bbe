"""docker/check_run.py: ledgers in order pass, and each way of cooking them is noticed."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shadowsync
from shadowsync.tests.support.coordinator.job_counts import BATCH, JobCounts

SCRIPT = Path(shadowsync.__file__).resolve().parent / "docker" / "check_run.py"
EXAMPLES = 8 * BATCH
Cook = Callable[[dict[str, Any]], object]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder: two spans of four batches, of which a trainer that died had two."""
    job_counts = JobCounts(tmp_path)
    for span in range(2):
        job_counts.cut(span)
    for _ in range(2):
        job_counts.deliver()
    for batch in job_counts.die("t1", job_counts.batches[:2]) + job_counts.batches[2:]:
        job_counts.train("t0", batch)
    job_counts.store.shard("embedding-0", 8, 0)
    examples, ledger = job_counts.close()
    nodes = [{"name": "trainer-0", "exit": "0"}, {"name": "trainer-1", "exit": "died"}]
    report = {
        "exit_code": 5,
        "examples": examples.model_dump(),
        "ledger": ledger.model_dump(),
        "nodes": nodes,
        "throughput": {"per_trainer": {"trainer-0": 100.0, "trainer-1": 50.0, "trainer-2": 0.0}},
    }
    (tmp_path / "report.json").write_text(json.dumps(report), encoding="utf-8")
    return tmp_path


def check(folder: Path, deaths: str = "trainer", *trainers: int) -> tuple[int, str]:
    """The script's exit code and what it printed."""
    command = [sys.executable, "-I", str(SCRIPT), *map(str, (folder, EXAMPLES, deaths, *trainers))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_ledger_in_order_passes(run: Path) -> None:
    code, text = check(run)
    assert (code, text.count("\n")) == (0, 1), text
    assert text.startswith(f"{EXAMPLES} examples trained, {2 * BATCH} of them returned")


@pytest.mark.parametrize(
    ("cook", "reported"),
    [
        (lambda r: r.update(exit_code=0), "exit code 0"),
        (lambda r: r["examples"].update(distinct=EXAMPLES - 1), "distinct examples of"),
        (lambda r: r["examples"].update(read=EXAMPLES), "read,"),
        (lambda r: r["examples"].update(in_flight=1), "in flight at the end"),
        (lambda r: r["examples"].update(dropped=1), "1 dropped"),
        (lambda r: r["examples"].update(replayed=1), "trained is not distinct + replayed"),
        (lambda r: r["examples"].update(trained=EXAMPLES + 1, read=EXAMPLES + 21), "ledger.sqlite has"),
        (lambda r: r["ledger"].update(adds_up=False), "does not add up"),
        (lambda r: r["ledger"]["identities"][0].update(left=7), "ledger: read by the readers"),
        (lambda r: r["ledger"]["identities"][-1].update(left=99), "ledger: pushes received twice"),
        (lambda r: r["nodes"].pop(), "nodes that died: none"),
        (
            lambda r: r["nodes"].append({"name": "sync-0", "exit": "died"}),
            "nodes that died: trainer-1, sync-0",
        ),
        (lambda r: r.pop("ledger"), "cannot be read as a finished run"),
    ],
)
def test_a_cooked_report_is_noticed(run: Path, cook: Cook, reported: str) -> None:
    path = run / "report.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    cook(report)
    path.write_text(json.dumps(report), encoding="utf-8")
    code, text = check(run)
    assert code == 1
    assert reported in text


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM batches WHERE number = 0",
        "UPDATE batches SET acknowledgements = 2 WHERE span = 1 AND number = 3",
        "DELETE FROM returned",
        "UPDATE shards SET applied = applied + 1",
        "DELETE FROM shards",
        "DROP TABLE batches",
    ],
)
def test_a_ledger_that_says_otherwise_than_the_report_is_noticed(run: Path, statement: str) -> None:
    with sqlite3.connect(run / "ledger.sqlite") as ledger:
        ledger.execute(statement)
    ledger.close()
    code, text = check(run)
    assert code == 1
    assert text.startswith("wrong: ")


def test_without_the_death_it_is_another_job(run: Path) -> None:
    assert check(run, deaths="")[0] == 1
    assert check(run, deaths="reader")[0] == 1
    assert check(run, deaths="trainer,trainer")[0] == 1


def test_trainers_that_trained_are_counted(run: Path) -> None:
    assert check(run, "trainer", 2)[0] == 0
    code, text = check(run, "trainer", 3)
    assert (code, text) == (1, "wrong: 2 trainers trained: trainer-0, trainer-1\n")


def test_a_run_that_left_nothing_is_told(tmp_path: Path) -> None:
    code, text = check(tmp_path / "absent")
    assert code == 1
    assert "cannot be read as a finished run (FileNotFoundError" in text
