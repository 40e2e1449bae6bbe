"""The columns of a comparison's tables: page, compare.md and terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ...pipeline.report.rendering.wording import DOES_NOT
from ...pipeline.text.format import MISSING, amount, counted, data_size, duration, number
from .record import Comparison
from .statistics import Paired
from .summary import Quality, Row
from .variants import REFERENCE

AnyRow = TypeVar("AnyRow")
# A column of what all rows have is one of each kind of row.
ShownRow = TypeVar("ShownRow", contravariant=True)
AnyQuality = TypeVar("AnyQuality")


@dataclass(frozen=True)
class Column(Generic[ShownRow]):
    """A title, and the text of a row's cell."""

    title: str
    text: Callable[[ShownRow], str]


def signed_difference(value: Paired | None) -> str:
    """Format a signed difference with its interval."""
    if value is None:
        return MISSING
    if value.low is None or value.high is None:
        return f"{value.mean:+.4f} (one pair)"
    return f"{value.mean:+.4f} [{value.low:+.4f}, {value.high:+.4f}]"


def ratio(value: Paired | None) -> str:
    """Format a ratio with its interval."""
    if value is None:
        return MISSING
    if value.low is None or value.high is None:
        return f"{number(value.mean, 3)} (one pair)"
    return f"{number(value.mean, 3)} [{number(value.low, 3)}, {number(value.high, 3)}]"


def run_status(row: Row) -> str:
    """Say whether a variant's runs finished and their ledgers add up."""
    parts = []
    if not row.ledger_adds_up:
        parts.append(f"LEDGER {DOES_NOT}")
    if row.failed:
        parts.append(f"{len(row.failed)} FAILED")
    if row.died:
        parts.append(f"a node died in {row.died}")
    return "; ".join([*parts, f"{row.finished} of {row.finished + len(row.failed)}"])


def _bytes(row: Row) -> str:
    return data_size(row.sync_bytes)


def _gap(row: Row) -> str:
    return MISSING if row.gap_mean is None else f"{number(row.gap_mean, 1)} / {amount(row.gap_max)}"


_QUALITY: Final[tuple[Column[Quality], ...]] = (
    Column("NE", lambda row: number(row.ne)),
    Column(f"NE minus {REFERENCE}", lambda row: signed_difference(row.ne_difference)),
    Column("by NE", lambda row: row.ne_verdict or MISSING),
    Column("AUC", lambda row: number(row.auc)),
    Column(f"AUC minus {REFERENCE}", lambda row: signed_difference(row.auc_difference)),
    Column("by AUC", lambda row: row.auc_verdict or MISSING),
)
COLUMNS: Final[tuple[Column[Row], ...]] = (
    Column("algorithm", lambda row: row.label),
    Column("runs", run_status),
    *_QUALITY,
    Column("examples/s", lambda row: amount(row.examples_per_second)),
    Column("over none", lambda row: ratio(row.speed_ratio)),
    Column("CPU s / million", lambda row: amount(row.cpu_seconds_per_million)),
    Column("sync bytes", _bytes),
    Column("rounds", lambda row: amount(row.rounds)),
    Column("round", lambda row: duration(row.round_seconds)),
    Column("gap mean / max", _gap),
    Column("divergence", lambda row: amount(row.divergence)),
)


def all_columns(rows: Sequence[Row]) -> list[Column[Row]]:
    """Return the columns of a comparison: COLUMNS, and those of each further label."""
    return with_labels(COLUMNS, _QUALITY, rows, lambda row: row.labels)


def with_labels(
    columns: Iterable[Column[AnyRow]],
    quality: Iterable[Column[AnyQuality]],
    rows: Sequence[AnyRow],
    labels_of: Callable[[AnyRow], Mapping[str, AnyQuality]],
) -> list[Column[AnyRow]]:
    """Return `columns`, and those of the quality of each further label."""

    def of_label(column: Column[AnyQuality], name: str) -> Column[AnyRow]:
        def text(row: AnyRow) -> str:
            # A variant none of whose runs has ended has no labels.
            labels = labels_of(row)
            return column.text(labels[name]) if name in labels else MISSING

        return Column(f"{name}: {column.title}", text)

    names = dict.fromkeys(name for row in rows for name in list(labels_of(row))[1:])
    return [*columns, *(of_label(column, name) for name in names for column in quality)]


# For a terminal of 80 columns; the intervals are on the page.
NARROW: Final[tuple[Column[Row], ...]] = (
    Column("algorithm", lambda row: row.label),
    Column("NE", lambda row: number(row.ne)),
    Column("by NE", lambda row: row.ne_verdict or MISSING),
    Column("ex./s", lambda row: amount(row.examples_per_second)),
    Column("/none", lambda row: MISSING if row.speed_ratio is None else number(row.speed_ratio.mean, 3)),
    Column("sync", _bytes),
    Column("gap, max", _gap),
)


def facts(comparison: Comparison, rows: list[Row]) -> list[str]:
    """Return the sentences above the tables."""
    seeds = ", ".join(str(seed) for seed in comparison.seeds)
    trainers = comparison.variants[-1].trainers
    lines = [
        f"{counted(len(comparison.runs), 'run')}: {counted(len(rows) - 1, 'way')} to synchronize"
        f" {counted(trainers, 'trainer')}, and one trainer alone. "
        f"Each was run with the seeds {seeds} on the same data, in alternating order.",
    ]
    if comparison.network is None:
        lines.append("No slow network was emulated.")
    else:
        by = f" by {comparison.means}" if comparison.means else ""
        lines.append(
            f"A slow network was emulated{by}: {comparison.network}. Requests and replies are both delayed."
        )
    stolen = [row.relay_cpu_seconds for row in rows if row.relay_cpu_seconds is not None]
    if stolen:
        lines.append(
            f"The relay took at most {duration(max(stolen))} of CPU time per run, on the same cores."
        )
    lines.append(
        "Each interval covers 95%, over pairs of the same seed (Student's t). If it contains 0, the answer "
        "is inconclusive. Lower NE is better; higher AUC is better."
    )
    return lines


def incomplete(comparison: Comparison) -> str:
    """Say what is missing; "" if nothing is."""
    waiting = sum(run.status == "waiting" for run in comparison.runs)
    if comparison.complete and not waiting:
        return ""
    return f"INCOMPLETE: {waiting} of {len(comparison.runs)} runs have not been made."
