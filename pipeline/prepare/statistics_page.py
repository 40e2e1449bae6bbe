"""Statistics of a prepared folder, as JSON and Markdown."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ..checkpoint.atomic_file import whole_file
from ..data.prepared.manifest import PreparedManifest
from .folder import STATISTICS_JSON, STATISTICS_MARKDOWN
from .statistics import FRACTIONS, HEADS, IdStatistics, NumberStatistics, Statistics


def write_statistics(folder: Path, statistics: Statistics, manifest: PreparedManifest) -> None:
    """Write statistics.json and statistics.md, each whole.

    Raises ResourceError.
    """
    with whole_file(folder / STATISTICS_JSON) as file:
        file.write(statistics.model_dump_json(indent=1).encode() + b"\n")
    with whole_file(folder / STATISTICS_MARKDOWN) as file:
        file.write(render_statistics(statistics, manifest).encode())


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
        f"- training rows: {statistics.rows:,}, {statistics.positives:,} of them with label 1 "
        f"({_share(statistics.label_rate)})"
    ]
    lines += [
        f"- {role.role} rows: {role.rows:,}, {role.positives:,} of them with label 1 "
        f"({_share(role.positives / role.rows)})"
        for role in manifest.roles
        if role.role != "train" and role.rows
    ]
    if statistics.weight_mean is not None:
        lines.append(f"- mean weight: {statistics.weight_mean:.6g}")
    if statistics.time_first is not None and statistics.time_last is not None:
        lines.append(f"- from {_moment(statistics.time_first)} to {_moment(statistics.time_last)}")
    lines.append(
        "- all figures below are of the training rows; all but `missing` and `rate where missing` leave "
        "missing values out"
    )
    return lines


def _ids(statistics: Statistics) -> list[str]:
    heads = [f"top {head:,}" for head in HEADS]
    names = ["column", "rate where missing", "missing", "distinct", *heads, "table rows", "expected to share"]
    about = ""
    if not all(column.distinct_exact for column in statistics.ids):
        about = (
            f" A ~ marks an estimate (standard error at most {statistics.distinct_error:.1%}), made for more "
            f"than {statistics.counted_values:,} values; the shares `top n` may then be too small, by at "
            f"most {max(column.head_short for column in statistics.ids):.2%}."
        )
    bags = [column for column in statistics.ids if column.kind == "multi_hot"]
    return [
        *_table(names, [_id_row(column) for column in statistics.ids]),
        "",
        f"`rate where missing`: label rate of the rows without a value; that of all rows is "
        f"{_share(statistics.label_rate)}. `distinct`: number of different values.{about} `top n`: share of "
        "all values that are one of the n most frequent. `expected to share`: share of the different values "
        "that are expected to get the same table row as another value.",
        *(
            f"`{_cell(column.name)}`: {column.mean_length:.2f} ids per row on average, "
            f"{column.longest} at most."
            for column in bags
        ),
    ]


def _id_row(column: IdStatistics) -> list[str]:
    return [
        _cell(column.name),
        _share(column.label_rate_missing),
        _share(column.missing),
        f"{'' if column.distinct_exact else '~'}{column.distinct:,}",
        *(_share(share) for share in column.head.values()),
        f"{column.table_rows:,}",
        _share(column.expected_shared),
    ]


def _numbers(statistics: Statistics) -> list[str]:
    quantiles = [f"{fraction:.0%}" for fraction in FRACTIONS]
    names = ["column", "rate where missing", "missing", "mean", "least", *quantiles, "largest"]
    return [
        *_table(names, [_number_row(column) for column in statistics.numbers]),
        "",
        "In the units of the source, before `shift`, `scale` and `transform`. A quantile is within "
        f"{statistics.quantile_error:.1%}, and exact for whole numbers below 1,000.",
    ]


def _number_row(column: NumberStatistics) -> list[str]:
    quantiles = [column.quantiles.get(f"{fraction:.0%}") for fraction in FRACTIONS]
    shown = [column.mean, column.least, *quantiles, column.largest]
    return [
        _cell(column.name),
        _share(column.label_rate_missing),
        _share(column.missing),
        *("-" if value is None else f"{value:.4g}" for value in shown),
    ]


def _bad_rows(manifest: PreparedManifest) -> list[str]:
    lines = [f"- {role.role}: {role.bad_rows:,} malformed rows" for role in manifest.roles if role.rows]
    samples = [sample for role in manifest.roles for sample in role.bad_samples]
    if samples:
        lines += ["", "The first of them:", "", *(f"    {sample}" for sample in samples)]
    return lines


def _table(names: list[str], rows: list[list[str]]) -> list[str]:
    rule = "|---|" + "---:|" * (len(names) - 1)
    return [f"| {' | '.join(names)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        # A column of times may count something else.
        return f"{seconds:g}"


def _cell(name: str) -> str:
    return name.replace("|", "\\|")
