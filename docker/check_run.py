"""Check of a run whose nodes were killed.

It reads the run's report and, independently, its ledger's file:

    python check_run.py RUN EXAMPLES DEATHS [TRAINERS]

DEATHS is the role of each node that died, such as reader,trainer,trainer. TRAINERS is how many trainers
trained, those that joined and those that died included. It adds up every figure that it can, and needs
nothing but Python. Exit code 0 and one line if all is well, 1 and a line for each
problem.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

FINISHED_WITH_DEATHS = 5


def faults_of_report(
    report: dict[str, Any], examples: int, deaths: list[str], trainers: int | None = None
) -> list[str]:
    """Return the problems in a job's report.

    The job had these numbers of examples, and of trainers that trained; `deaths` has each dead node's role.
    """
    counts = report["examples"]
    ledger = report["ledger"]
    dead = [node["name"] for node in report["nodes"] if str(node["exit"]) != "0"]
    came = counts["trained"] + counts["returned"] + (counts["in_flight"] or 0)
    checks = {
        f"exit code {report['exit_code']}": report["exit_code"] == FINISHED_WITH_DEATHS,
        f"{counts['distinct']} distinct examples of {examples}": counts["distinct"] == examples,
        f"{counts['read']} read, {came} trained, returned or in flight": counts["read"] == came,
        "trained is not distinct + replayed": counts["trained"] == counts["distinct"] + counts["replayed"],
        f"{counts['in_flight']} in flight at the end": counts["in_flight"] == 0,
        f"{counts['dropped']} dropped, {counts['bad_rows']} bad": counts["dropped"] + counts["bad_rows"] == 0,
        "the report says that its ledger does not add up": ledger["adds_up"] is True,
        f"nodes that died: {', '.join(dead) or 'none'}": sorted(name.rpartition("-")[0] for name in dead)
        == sorted(deaths),
    }
    if trainers is not None:
        trained = [name for name, speed in report["throughput"]["per_trainer"].items() if speed > 0]
        checks[f"{len(trained)} trainers trained: {', '.join(trained)}"] = len(trained) == trainers
    wrong = [text for text, holds in checks.items() if not holds]
    wrong += [
        f"ledger: {identity['name']}: {identity.get('unknown') or (identity['left'], identity['right'])}"
        for identity in ledger["identities"]
        if not (is_true(identity) and identity["holds"])
    ]
    return wrong


def is_true(identity: dict[str, Any]) -> bool:
    """Return whether its two numbers are known and agree."""
    left, right = identity["left"], identity["right"]
    if left is None or right is None:
        return False
    return bool(left <= right if identity.get("at_most") else left == right)


def faults_of_ledger(path: Path, report: dict[str, Any], examples: int) -> list[str]:
    """Return where the ledger's file differs from the report."""
    # The job has ended, and the file may be on a read-only volume.
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?immutable=1", uri=True)) as ledger:
        (batches, distinct, trained) = ledger.execute(
            "SELECT count(*), sum(examples), sum(examples * acknowledgements) FROM batches"
        ).fetchone()
        (returned,) = ledger.execute("SELECT coalesce(sum(examples), 0) FROM returned").fetchone()
        applied = dict(ledger.execute("SELECT name, applied FROM shards").fetchall())
    counts = report["examples"]
    checks = {
        f"ledger.sqlite has {distinct} distinct examples, not {examples}": distinct == examples,
        f"ledger.sqlite has {trained} trained, the report {counts['trained']}": trained == counts["trained"],
        f"ledger.sqlite has {returned} returned, the report {counts['returned']}": returned
        == counts["returned"],
        "no embedding node is in ledger.sqlite": bool(applied),
    }
    wrong = [text for text, holds in checks.items() if not holds]
    wrong += [
        f"{name} applied {count} of {batches} batches" for name, count in applied.items() if count != batches
    ]
    return wrong


def main(arguments: list[str]) -> int:
    """Check the run; return the exit code."""
    folder, examples, deaths = Path(arguments[0]), int(arguments[1]), arguments[2].split(",")
    trainers = [int(number) for number in arguments[3:]]
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        wrong = faults_of_report(report, examples, deaths, *trainers)
        wrong += faults_of_ledger(folder / "ledger.sqlite", report, examples)
    except (OSError, ValueError, KeyError, TypeError, sqlite3.Error) as error:
        wrong = [f"{folder} cannot be read as a finished run ({type(error).__name__}: {error})"]
    for text in wrong:
        print(f"wrong: {text}")
    if not wrong:
        counts = report["examples"]
        print(
            f"{counts['distinct']} examples trained, {counts['returned']} of them returned by a dead node "
            f"first, and {counts['replayed']} again for a new shard; the ledger adds up, and ledger.sqlite "
            "agrees"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
