"""Statistics of a prepared folder, as JSON and Markdown."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ..atomic_file import write_text
from ..data.prepared.manifest import PreparedManifest
from ..text.format import amount, count, number, percent
from ..text.markdown import markdown_table, plain
from .folder import STATISTICS_JSON, STATISTICS_MARKDOWN
from .statistics import FRACTIONS, HEADS, ColumnStatistics, IdStatistics, NumberStatistics, Statistics

# In one line.
NAMED_COLUMNS: Final = 8


def write_statistics(folder: Path, statistics: Statistics, manifest: PreparedManifest) -> None:
    """Write statistics.json and statistics.md, each atomically.

    Raises ResourceError if a file cannot be written.
    """
    write_text(folder / STATISTICS_JSON, statistics.model_dump_json(indent=1) + "\n")
    write_text(folder / STATISTICS_MARKDOWN, render_statistics(statistics, manifest))


def sharing_line(folder: Path) -> str:
    """Say how many values of which columns are expected to share a row, most first.

    Returns "" if there are none, or if the folder has no statistics of this version.
    """
    try:
        statistics = Statistics.model_validate_json((folder / STATISTICS_JSON).read_bytes())
    except (OSError, ValueError):
        return ""
    shared = sorted(
        (column for column in statistics.ids if column.expected_shared),
        key=lambda column: -column.expected_shared,
    )
    if not shared:
        return ""
    parts = [
        f"{percent(column.expected_shared, 1)} of {column.name} ({count(column.table_rows)} rows)"
        for column in shared
    ]
    others = f", and {len(parts) - NAMED_COLUMNS} more columns" if len(parts) > NAMED_COLUMNS else ""
    return f"different ids expected to share rows: {', '.join(parts[:NAMED_COLUMNS])}{others}"


def render_statistics(statistics: Statistics, manifest: PreparedManifest) -> str:
    """Return the text of statistics.md."""
    lines = ["# Statistics of the data", "", *_totals(statistics, manifest), ""]
    if statistics.ids:
        lines += ["## Columns with a table", "", *_ids(statistics), ""]
    if statistics.numbers:
        lines += ["## Numbers", "", *_numbers(statistics), ""]
    lines += ["## Rows that were left out", "", *_bad_rows(manifest), ""]
    return "\n".join(lines)


def _totals(statistics: Statistics, manifest: PreparedManifest) -> list[str]:
    lines = [
        f"- training rows: {count(statistics.rows)}, {count(statistics.positives)} of them with label 1 "
        f"({percent(statistics.label_rate, 2)})"
    ]
    lines += [
        f"- of them with {plain(name)}: {count(label.positives)} ({percent(label.label_rate, 2)})"
        for name, label in list(statistics.labels.items())[1:]
    ]
    lines += [
        f"- {role.role} rows: {count(role.rows)}, {count(role.positives)} of them with label 1 "
        f"({percent(role.positives / role.rows, 2)})"
        for role in manifest.roles
        if role.role != "train" and role.rows
    ]
    if statistics.weight_mean is not None:
        lines.append(f"- mean weight: {amount(statistics.weight_mean)}")
    if statistics.time_first is not None and statistics.time_last is not None:
        lines.append(f"- from {_moment(statistics.time_first)} to {_moment(statistics.time_last)}")
    lines.append(
        "- all figures below are of the training rows; all but `missing` and `rate where missing` leave "
        "missing values out"
    )
    return lines


def _ids(statistics: Statistics) -> list[str]:
    heads = [f"top {count(head)}" for head in HEADS]
    names = [*_first_names(statistics), "missing", "distinct", *heads, "table rows", "expected to share"]
    about = ""
    if not all(column.distinct_exact for column in statistics.ids):
        about = (
            f" A ~ marks an estimate (standard error at most {percent(statistics.distinct_error, 1)}) of a "
            f"column with more than {count(statistics.counted_values)} values; the shares `top n` are then "
            "those in a sample of so many."
        )
    bags = [column for column in statistics.ids if column.kind == "multi_hot"]
    return [
        *markdown_table(names, [_id_row(column) for column in statistics.ids], align=_aligned(names)),
        "",
        "`rate where missing`: label rate of the rows without a value; that of all rows is "
        f"{percent(statistics.label_rate, 2)}. `distinct`: number of different values.{about} `top n`: share "
        "of all values that are one of the n most frequent. `expected to share`: share of the different "
        "values that are expected to get the same table row as another value.",
        *(
            f"{plain(column.name)}: {number(column.mean_length, 2)} ids per row on average, "
            f"{count(column.longest)} at most."
            for column in bags
        ),
    ]


def _first_names(statistics: Statistics) -> list[str]:
    """Return the heads of a table up to the rates where missing."""
    further = list(statistics.labels)[1:]
    return ["column", "rate where missing", *(f"{plain(name)} where missing" for name in further)]


def _rates_where_missing(column: ColumnStatistics) -> list[str]:
    further = [label.label_rate_missing for label in column.labels.values()][1:]
    return [percent(rate, 2) for rate in (column.label_rate_missing, *further)]


def _id_row(column: IdStatistics) -> list[str]:
    return [
        column.name,
        *_rates_where_missing(column),
        percent(column.missing, 2),
        f"{'' if column.distinct_exact else '~'}{count(column.distinct)}",
        *(percent(share, 2) for share in column.head.values()),
        count(column.table_rows),
        percent(column.expected_shared, 2),
    ]


def _numbers(statistics: Statistics) -> list[str]:
    quantiles = [percent(fraction) for fraction in FRACTIONS]
    names = [*_first_names(statistics), "missing", "mean", "least", *quantiles, "largest"]
    return [
        *markdown_table(names, [_number_row(column) for column in statistics.numbers], align=_aligned(names)),
        "",
        "In the units of the source, before `shift`, `scale` and `transform`. A quantile is within "
        f"{percent(statistics.quantile_error, 1)}, and exact for whole numbers below 1,000.",
    ]


def _number_row(column: NumberStatistics) -> list[str]:
    quantiles = [column.quantiles.get(percent(fraction)) for fraction in FRACTIONS]
    shown = [column.mean, column.least, *quantiles, column.largest]
    return [
        column.name,
        *_rates_where_missing(column),
        percent(column.missing, 2),
        *map(amount, shown),
    ]


def _bad_rows(manifest: PreparedManifest) -> list[str]:
    lines = [f"- {role.role}: {count(role.bad_rows)} malformed rows" for role in manifest.roles if role.rows]
    samples = [sample for role in manifest.roles for sample in role.bad_samples]
    if samples:
        lines += ["", "The first of them:", "", *(f"    {' '.join(sample.split())}" for sample in samples)]
    return lines


def _aligned(names: list[str]) -> str:
    """Align all columns but the first to the right."""
    return "l" + "r" * (len(names) - 1)


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        # A timestamp column may count something else than seconds.
        return amount(seconds)
