"""How far a running job is, by the file of its ledger."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

_BY_TRAINER = "SELECT trainer, count(*), sum(acknowledgements), sum(examples) FROM batches GROUP BY trainer"


@dataclass(frozen=True)
class Progress:
    """What a run has trained.

    Attributes:
        batches: trained batches, each counted once.
        acknowledgements: how often batches were trained.
        examples: examples of these batches, each counted once.
        trainers: names of the trainers that have trained any.
    """

    batches: int = 0
    acknowledgements: int = 0
    examples: int = 0
    trainers: frozenset[str] = frozenset()


def progress_of(folder: Path) -> Progress | None:
    """Read a run's progress; None without a ledger, and while its file cannot be read."""
    path = folder / "ledger.sqlite"
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as database:
            rows = database.execute(_BY_TRAINER).fetchall()
    except sqlite3.OperationalError:
        return None
    batches, acknowledgements, examples = (sum(row[column] for row in rows) for column in (1, 2, 3))
    return Progress(batches, acknowledgements, examples, frozenset(row[0] for row in rows))
