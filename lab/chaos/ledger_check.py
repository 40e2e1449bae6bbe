"""Independent check of a run's ledger from its files.

Nothing of shadowsync is imported here, so that an error of the job's own audit is not repeated.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

# The texts of events in the ledger's file.
DEATHS: Final = ("died", "was silent", "failed")
JOINED: Final = "joined the running job"
# Batches that were left out and never trained, each once.
LEFT_OUT: Final = (
    "SELECT DISTINCT epoch, span, number, examples FROM left_out l WHERE NOT EXISTS"
    " (SELECT 1 FROM batches b WHERE (b.epoch, b.span, b.number) = (l.epoch, l.span, l.number))"
)


def problems_of(folder: Path, examples: int) -> list[str]:
    """Check a finished run; return the problems found.

    Args:
        folder: the run's folder, with report.json and ledger.sqlite.
        examples: number of examples of the whole input, over all epochs.
    """
    try:
        report = json.loads((folder / "report.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        return [f"report.json: {error}"]
    path = folder / "ledger.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return [*_of_report(report), *_of_ledger(database, report, examples)]


def recovery_seconds(folder: Path) -> list[tuple[str, float]]:
    """Return the role and the recovery seconds of each replaced node.

    Recovery counts from the notice of the death. The list is empty for a run without a ledger.
    """
    path = folder / "ledger.sqlite"
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        events = database.execute("SELECT seconds, node, what FROM events ORDER BY seconds").fetchall()
    waiting: dict[str, list[float]] = {}
    recoveries = []
    for seconds, node, what in events:
        role = node.partition("-")[0]
        if what.startswith(DEATHS):
            waiting.setdefault(role, []).append(seconds)
        elif what.startswith(JOINED) and waiting.get(role):
            recoveries.append((role, seconds - waiting[role].pop(0)))
    return recoveries


def _of_report(report: dict[str, Any]) -> list[str]:
    problems = []
    counts = report["examples"]
    left_out = sum(number for why, number in counts["reasons"].items() if "left out" in why)
    # Unknown if a trainer could not say it; an identity then tells why.
    in_flight = counts["in_flight"]
    sent = counts["trained"] + counts["returned"] + (in_flight or 0) + left_out
    if in_flight is not None and counts["read"] != sent:
        problems.append(f"read {counts['read']}, and trained + returned + in flight + left out {sent}")
    if counts["trained"] != counts["distinct"] + counts["replayed"]:
        problems.append(f"trained {counts['trained']}, and distinct + replayed differ")
    for identity in report["ledger"]["identities"]:
        if identity.get("unknown"):
            problems.append(f"unknown: {identity['name']}: {identity['unknown']}")
        elif identity["holds"] is not True:
            problems.append(f"does not hold: {identity['name']}: {identity['left']} and {identity['right']}")
    return problems


def _of_ledger(database: sqlite3.Connection, report: dict[str, Any], examples: int) -> list[str]:
    problems = []
    trained, distinct, batches = database.execute(
        "SELECT coalesce(sum(examples * acknowledgements), 0), coalesce(sum(examples), 0), count(*)"
        " FROM batches"
    ).fetchone()
    if (trained, distinct) != (report["examples"]["trained"], report["examples"]["distinct"]):
        problems.append(f"the file has {trained} trained and {distinct} distinct examples, the report others")
    restored = sum(
        database.execute(f"SELECT coalesce(sum(examples), 0) FROM {table}").fetchone()[0]
        for table in ("restored_spans", "restored_batches", "restored_left_out")
    )
    (left_out,) = database.execute(f"SELECT coalesce(sum(examples), 0) FROM ({LEFT_OUT})").fetchone()
    if distinct + restored + left_out != examples:
        whole = f"{distinct} + {restored} restored + {left_out} left out"
        problems.append(f"{whole} examples, and the input has {examples}")
    problems += _of_spans(database)
    for name, applied in database.execute("SELECT name, applied FROM shards") if not restored else ():
        if applied != batches:
            problems.append(f"{name} applied {applied} batches, and {batches} are distinct")
    return problems


def _of_spans(database: sqlite3.Connection) -> list[str]:
    """Return the spans with missing or surplus batches."""
    known = (
        "SELECT epoch, span, number, examples FROM batches UNION ALL"
        " SELECT epoch, span, number, examples FROM restored_batches UNION ALL"
        " SELECT epoch, span, number, examples FROM restored_left_out UNION ALL"
        f" {LEFT_OUT}"
    )
    rows = database.execute(
        f"SELECT s.epoch, s.span, s.batches, s.examples, count(k.number), coalesce(sum(k.examples), 0),"
        f" coalesce(max(k.number), -1) FROM spans s LEFT JOIN ({known}) k"
        f" ON (k.epoch, k.span) = (s.epoch, s.span) GROUP BY s.epoch, s.span"
    ).fetchall()
    return [
        f"span {span} of epoch {epoch}: {seen_batches} of {batches} batches,"
        f" {seen_examples} of {examples} examples"
        for epoch, span, batches, examples, seen_batches, seen_examples, last in rows
        if (batches, examples) != (seen_batches, seen_examples) or last >= (batches or 0)
    ]
