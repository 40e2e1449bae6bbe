"""The accounts of a run from its files alone: whole ones are found whole, and each planted defect is seen."""

from __future__ import annotations

import ast
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from shadowsync.lab.chaos import ledger_check
from shadowsync.lab.chaos.ledger_check import problems_of, recovery_seconds
from shadowsync.nodes.coordinator.ledger.records import Acknowledged, LeftOut
from shadowsync.nodes.coordinator.ledger.store import LedgerStore
from shadowsync.pipeline.data.span import Span
from shadowsync.tests.support.data.batches import batch_id

EXAMPLES = 60


def _report() -> dict[str, Any]:
    """Two spans of three batches of ten; one batch is left out, another was returned once."""
    return {
        "examples": {
            "read": 70,
            "trained": 50,
            "distinct": 50,
            "replayed": 0,
            "returned": 10,
            "in_flight": 0,
            "reasons": {"of a batch left out because its loss is NaN": 10},
        },
        "ledger": {"identities": [{"name": "a = b", "left": 1, "right": 1, "holds": True, "unknown": ""}]},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = LedgerStore(tmp_path / "ledger.sqlite")
    for number in range(2):
        store.grant(0, Span(number, "part.tsv", "bytes", 0, 100), "reader-0")
        store.span_read(0, number, batches=3, examples=30, bad_rows=0)
    good = [(span, number) for span in range(2) for number in range(3)][:-1]
    store.acknowledge(Acknowledged(batch_id(n, span=s), 10, "trainer-0", False) for s, n in good)
    store.left_out([LeftOut(batch_id(2, span=1), 10, "trainer-0", "its loss is NaN")])
    store.returned([(0, 0, 0, 10, "trainer-1")])
    store.shard("embedding-0", 5, 0)
    store.close()
    (tmp_path / "report.json").write_text(json.dumps(_report()), "utf-8")
    return tmp_path


def test_a_whole_run_has_no_problem(folder: Path) -> None:
    assert problems_of(folder, EXAMPLES) == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM batches WHERE span = 1 AND number = 0", "span 1 of epoch 0: 2 of 3 batches"),
        ("UPDATE batches SET acknowledgements = 2 WHERE span = 0 AND number = 0", "the report others"),
        (
            "UPDATE batches SET examples = 9 WHERE span = 0 AND number = 0",
            "span 0 of epoch 0: 3 of 3 batches, 29",
        ),
        ("UPDATE batches SET number = 7 WHERE span = 0 AND number = 0", "span 0 of epoch 0: 3 of 3 batches"),
        ("UPDATE shards SET applied = 4", "embedding-0 applied 4 batches, and 5 are distinct"),
        ("DELETE FROM left_out", "span 1 of epoch 0: 2 of 3 batches"),
        ("UPDATE spans SET batches = NULL WHERE span = 0", "span 0 of epoch 0: 3 of None batches"),
    ],
)
def test_each_planted_defect_of_the_ledger_is_seen(folder: Path, statement: str, said: str) -> None:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        database.execute(statement)
    assert any(said in problem for problem in problems_of(folder, EXAMPLES)), problems_of(folder, EXAMPLES)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"examples": {"read": 80}}, "read 80, and trained + returned + in flight + left out 70"),
        ({"examples": {"replayed": 10}}, "trained 50, and distinct + replayed differ"),
        (
            {"ledger": {"identities": [{"name": "a = b", "left": 1, "right": 2, "holds": False}]}},
            "does not hold: a = b",
        ),
        (
            {"ledger": {"identities": [{"name": "a = b", "holds": None, "unknown": "it died"}]}},
            "unknown: a = b: it died",
        ),
    ],
)
def test_each_planted_defect_of_the_report_is_seen(folder: Path, change: dict[str, Any], said: str) -> None:
    report = _report()
    for section, values in change.items():
        report[section] |= values
    (folder / "report.json").write_text(json.dumps(report), "utf-8")
    assert any(said in problem for problem in problems_of(folder, EXAMPLES)), problems_of(folder, EXAMPLES)


def test_an_input_that_was_not_all_trained_is_seen(folder: Path) -> None:
    assert problems_of(folder, EXAMPLES + 10) == [
        "50 + 0 restored + 10 left out examples, and the input has 70"
    ]


def test_a_run_without_a_report_is_seen(folder: Path) -> None:
    (folder / "report.json").unlink()
    (problem,) = problems_of(folder, EXAMPLES)
    assert problem.startswith("report.json: ")


def test_it_shares_no_code_with_what_it_checks() -> None:
    tree = ast.parse(Path(ledger_check.__file__).read_text("utf-8"))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert imported
    assert all(node.level == 0 and not str(node.module).startswith("shadowsync") for node in imported)


def test_how_long_until_another_took_part(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        events = [
            (1.0, "reader-0", "died (killed by SIGKILL)"),
            (1.5, "trainer-1", "was silent for 5 s"),
            (1.75, "reader-1", "joined the running job"),
            (2.0, "reader-0", "1 unfinished span can be read again after 300 ms"),
            (4.0, "trainer-2", "joined the running job, with the weights and the optimizer of trainer-0"),
            (5.0, "sync-0", "died (killed by SIGKILL)"),
        ]
        database.executemany("INSERT INTO events VALUES (?, ?, ?)", events)
    assert recovery_seconds(folder) == [("reader", 0.75), ("trainer", 2.5)]
    assert recovery_seconds(folder / "none") == []
