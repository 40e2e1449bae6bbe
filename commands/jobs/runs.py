"""`shadowsync runs`: the runs of a folder beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ...pipeline.report.run_folders.runs_table import Runs

# As SORTS of pipeline/report/run_folders/runs_table.py; imported there it would need pydantic for --help.
_SORTS = ("start", "name", "examples", "examples/s", "NE", "AUC", "recall", "NDCG", "MRR", "NE in training")

_WIDEST = 10_000


@click.command()
@click.argument("directory", metavar="[DIRECTORY]", default="runs", type=click.Path(path_type=Path))
@click.option(
    "--sort",
    default="start",
    show_default=True,
    type=click.Choice(_SORTS, case_sensitive=False),
    help="By NE the lowest is first, by other figures the highest.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, an object for each run.")
def runs(directory: Path, sort: str, as_json: bool) -> None:
    """List the runs in DIRECTORY, by default runs: how good they are, and how they differ.

    NE, AUC, recall, NDCG and MRR are those of the held-out files; recall and NDCG count the first K items, or
    rows of a group, of validation.metric. Figures that no run has, and settings that all runs share, are left
    out. A run that still trains, or was killed, has no report.
    """
    import json

    from ...pipeline.report.run_folders.runs_table import list_runs

    all_runs = list_runs(directory, sort=sort)
    if as_json:
        click.echo(json.dumps(all_runs.rows()))
    else:
        _print(all_runs)


def _print(all_runs: Runs) -> None:
    from rich.console import Console

    console, rows = Console(), all_runs.texts()
    table = _table(rows, list(rows[0]))
    wide = table.__rich_measure__(console, console.options.update(max_width=_WIDEST)).maximum
    if not console.is_terminal:
        # A pipe has no width.
        Console(width=wide).print(table)
    elif wide <= console.width:
        console.print(table)
    else:
        console.print(_table(rows, [name for name in rows[0] if name not in all_runs.differing]))
        _print_settings(rows, all_runs.differing, console)


def _table(rows: list[dict[str, str]], names: list[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name in ("run", "outcome") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[name]) for name in names))
    return table


def _print_settings(rows: list[dict[str, str]], names: tuple[str, ...], console: Console) -> None:
    """Print them below the figures, where the terminal is too narrow to have them beside."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    for row in rows:
        table.add_row(Text(row["run"]), Text(", ".join(f"{name} = {row[name]}" for name in names)))
    console.print()
    console.print(table)
