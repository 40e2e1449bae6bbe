"""compare.md, and the table on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...pipeline.report.rendering.wording import DOES_NOT
from ...pipeline.text.format import data_size
from ...pipeline.text.markdown import markdown_table, plain
from .columns import NARROW, all_columns, facts, incomplete, run_status
from .plots import PICTURES
from .record import Comparison
from .summary import Row

WIDE: Final = 220


def render_markdown(comparison: Comparison, rows: list[Row]) -> str:
    """Render compare.md, ending in a newline."""
    lines = [f"# Comparison {plain(comparison.name)}", ""]
    if missing := incomplete(comparison):
        lines += [f"> **{missing}**", ""]
    for row in rows:
        if not row.ledger_adds_up:
            lines += [f"> **{plain(row.label)}: the ledger {DOES_NOT}. Do not trust its runs.**", ""]
    lines += [f"- {plain(fact)}" for fact in facts(comparison, rows)]
    columns = all_columns(rows)
    cells = [[column.text(row) for column in columns] for row in rows]
    lines += ["", *markdown_table([plain(column.title) for column in columns], cells)]
    lines += ["", *pictures(PICTURES)]
    models = dict.fromkeys(f"{row.label}: {row.model}" for row in rows if row.model)
    lines += ["Scored models:", "", *(f"- {plain(text)}" for text in models)]
    failed = [f"- {plain(row.label)}: {plain(text)}" for row in rows for text in row.failed]
    if failed:
        lines += ["", "## Failed", "", *failed]
    hardware = comparison.hardware
    cores = f"{hardware.cores} cores of {hardware.cpu_model or 'an unknown CPU'}"
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    memory = data_size(hardware.memory_bytes)
    lines += ["", f"Started {plain(comparison.started_at)}, on {plain(f'{cores}, {memory}; {versions}')}."]
    return "\n".join(lines) + "\n"


def pictures(shown: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the lines that show pictures, each a file with its title and text."""
    return [
        line
        for file, title, text in shown
        for line in (f"## {title}", "", text, "", f"![{title}]({file})", "")
    ]


def print_table(comparison: Comparison, rows: list[Row], console: Console) -> None:
    """Print the main columns.

    A row is red if a run failed or its ledger does not add up.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown = all_columns(rows) if console.width >= WIDE else NARROW
    for column in shown:
        first = column is shown[0]
        table.add_column(
            column.title, overflow="fold", justify="left" if first else "right", no_wrap=not first
        )
    for row in rows:
        bad = bool(row.failed) or not row.ledger_adds_up
        # Text, not str, in which a name with brackets would be markup.
        table.add_row(*(Text(column.text(row)) for column in shown), style="bold red" if bad else "")
    console.print(table)
    for row in rows:
        if row.failed or not row.ledger_adds_up:
            console.print(Text(f"{row.label}: {run_status(row)}", style="bold red"))
        for text in row.failed:
            console.print(Text(f"  {text}", style="red"))
    if missing := incomplete(comparison):
        console.print(Text(missing, style="bold yellow"))
