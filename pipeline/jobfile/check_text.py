"""The check of a job as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..config.job import Job
from ..text.format import counted, number, percent
from .check import JobCheck
from .check_rows import ShownRow

_MUCH: Final = 0.05


def check_lines(job: Job, check: JobCheck) -> Iterator[str]:
    """Yield the lines to print."""
    yield f"{job.run.name}: fits {counted(check.files, 'file')}; looked at {counted(check.looked_at, 'row')}"
    if check.bad:
        yield f"malformed: {check.bad:,} ({percent(check.bad / check.looked_at, 1)}), for example"
        yield from (f"  {sample}" for sample in check.bad_samples)
    for name, mean in check.label_means.items():
        learns = 0 < mean < 1 or (mean == 1 and not job.model.needs_negatives)
        said = "" if learns else ": all the same, so nothing can be learned"
        yield f"label {name}: mean {number(mean)}{said}"
    yield from _shown_rows(job, check.rows)
    yield from _shared(check)
    if check.warnings:
        yield ""
        yield "take note:"
        yield from (f"  {warning}" for warning in check.warnings)


def _shown_rows(job: Job, rows: Sequence[ShownRow]) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield f"the first {counted(len(rows), 'row')}, and what is trained:"
    head = ["column", "kind", *(f"row {number + 1}" for number in range(len(rows)))]
    lines = [head]
    for name in rows[0].values:
        column = job.data.columns.get(name)
        cells = [_cell(*row.values[name]) if not row.fault else "malformed" for row in rows]
        lines.append([name, column.kind if column else "", *cells])
    yield from _aligned(lines)
    yield from (
        f"  row {number + 1} is malformed: {row.fault}" for number, row in enumerate(rows) if row.fault
    )


def _cell(value: str, trained: str) -> str:
    return f"{value} -> {trained}" if value else trained


def _shared(check: JobCheck) -> Iterator[str]:
    if not check.tables:
        return
    yield ""
    yield "ids among the rows looked at; more rows have more of them:"
    lines = [["table", "ids", "rows", "share a row with another id"]]
    for table in check.tables:
        said = percent(table.share, 1)
        if table.grows:
            said = (
                "none: the table grows" if table.ids <= table.rows else "none, but it is full: ids lose rows"
            )
        elif table.share > _MUCH:
            said += f' of the values: give tables.{table.name} more rows, or kind = "growing"'
        name = f"{table.name} ({', '.join(table.columns)})" if len(table.columns) > 1 else table.name
        lines.append([name, f"{table.ids:,}", f"{table.rows:,}", said])
    yield from _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
