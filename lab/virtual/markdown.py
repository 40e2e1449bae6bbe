"""virtual.md, its pictures, and the table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, cycle
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...pipeline.report.rendering.quality_warnings import FIRST_ITERATIONS
from ...pipeline.text.format import MISSING, amount, data_size, duration, number
from ...pipeline.text.markdown import markdown_table, plain
from ..comparison.columns import Column, signed_difference, with_labels
from ..comparison.curves import mean_curve
from ..comparison.markdown import pictures
from ..comparison.plots import ALONE, COLOURS, finish, frame
from ..comparison.variants import REFERENCE
from .plan import VirtualPlan
from .summary import VirtualQuality, VirtualRow

_QUALITY: Final[tuple[Column[VirtualQuality], ...]] = (
    Column("NE", lambda row: number(row.ne)),
    Column("deviation", lambda row: number(row.ne_deviation)),
    Column(f"NE minus {REFERENCE}", lambda row: signed_difference(row.ne_difference)),
    Column("NE in training", lambda row: number(row.training_ne)),
    Column("AUC", lambda row: number(row.auc)),
)
COLUMNS: Final[tuple[Column[VirtualRow], ...]] = (
    Column("algorithm", lambda row: row.label),
    Column("trainers", lambda row: str(row.trainers)),
    Column("runs", lambda row: f"{row.finished} of {row.finished + row.missing}"),
    *_QUALITY,
    Column("gap", lambda row: MISSING if row.gap_mean is None else number(row.gap_mean, 1)),
    Column(f"rounds in the first {FIRST_ITERATIONS} iterations", lambda row: number(row.early_rounds, 1)),
    Column("staleness", lambda row: number(row.staleness, 1)),
    Column("divergence", lambda row: amount(row.divergence)),
    Column("virtual time", lambda row: duration(row.seconds)),
    Column("examples/s", lambda row: amount(row.examples_per_second)),
    Column("sync bytes", lambda row: data_size(row.sync_bytes)),
)
PICTURES: Final = (
    ("ne_by_trainers.png", "NE against trainers", "Mean over seeds, with one standard deviation."),
    ("ne_by_time.png", "NE in training against virtual time", "Mean over seeds."),
)
# For a terminal of 80 columns.
NARROW: Final = ("algorithm", "trainers", "runs", "NE", "deviation", "gap", "staleness", "virtual time")


def _all_columns(rows: Sequence[VirtualRow]) -> list[Column[VirtualRow]]:
    return with_labels(COLUMNS, _QUALITY, rows, lambda row: row.labels)


def virtual_facts(plan: VirtualPlan) -> list[str]:
    """Return the sentences above the table."""
    seeds = ", ".join(map(str, plan.seeds))
    links = plan.network or "links take no time"
    times = ", ".join(f"{key} = {value}" for key, value in plan.timing.model_dump().items() if value)
    return [
        f"Emulated on a virtual clock: real arithmetic, and times that are set. Seeds {seeds}.",
        f"Times: {times}. Links: {links}.",
        "Each interval covers 95%, over pairs of the same seed (Student's t). Lower NE is better.",
    ]


def virtual_incomplete(rows: Sequence[VirtualRow]) -> list[str]:
    missing = sum(row.missing for row in rows)
    return [f"INCOMPLETE: {missing} runs have not been made."] if missing else []


def render_virtual_markdown(plan: VirtualPlan, rows: Sequence[VirtualRow]) -> str:
    """Render virtual.md, ending in a newline."""
    lines = [f"# Virtual comparison {plain(plan.name)}", ""]
    lines += [f"> **{text}**" for text in virtual_incomplete(rows)]
    lines += [f"- {plain(fact)}" for fact in virtual_facts(plan)]
    columns = _all_columns(rows)
    cells = [[column.text(row) for column in columns] for row in rows]
    table = markdown_table([plain(column.title) for column in columns], cells)
    return "\n".join([*lines, "", *table, "", *pictures(PICTURES)]) + "\n"


def draw_virtual(rows: Sequence[VirtualRow]) -> dict[str, Figure]:
    """Draw each picture of virtual.md, by its file."""
    return dict(
        zip((file for file, _, _ in PICTURES), (_against_trainers(rows), _against_time(rows)), strict=True)
    )


def print_virtual_table(rows: Sequence[VirtualRow], console: Console) -> None:
    """Print the main columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown = [column for column in COLUMNS if column.title in NARROW]
    for column in shown:
        table.add_column(column.title, justify="left" if column.title == "algorithm" else "right")
    for row in rows:
        table.add_row(*(Text(column.text(row)) for column in shown), style="bold red" if row.missing else "")
    console.print(table)


def _against_trainers(rows: Sequence[VirtualRow]) -> Figure:
    figure, axes = frame("trainers", "NE, lower is better")
    counts = sorted({row.trainers for row in rows})
    for label, colour in _colours(rows).items():
        known = [row for row in rows if row.label == label and row.ne is not None]
        if label == REFERENCE:
            for row in known:
                axes.axhline(row.ne or 0.0, color=colour, linestyle="-.", label=label)
            continue
        axes.errorbar(
            [row.trainers for row in known],
            [row.ne or 0.0 for row in known],
            yerr=[row.ne_deviation or 0.0 for row in known],
            color=colour,
            marker="o",
            markersize=4,
            capsize=3,
            label=label.lstrip("_"),
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    return finish(figure, axes, "no run was scored")


def _against_time(rows: Sequence[VirtualRow]) -> Figure:
    figure, axes = frame("virtual seconds", "NE in training")
    widths = sorted({row.trainers for row in rows})
    for row in rows:
        curves = [[(p.seconds, p.ne) for p in curve if p.ne is not None] for curve in row.curves]
        grid, values = mean_curve(curves)
        if len(grid):
            axes.plot(
                grid,
                values,
                color=_colours(rows)[row.label],
                linewidth=0.8 + widths.index(row.trainers) * 1.6 / len(widths),
                label=f"{row.label.lstrip('_')}, {row.trainers}" if row.label != REFERENCE else REFERENCE,
            )
    return finish(figure, axes, "nothing was measured")


def _colours(rows: Sequence[VirtualRow]) -> dict[str, str]:
    labels = list(dict.fromkeys(row.label for row in rows))
    return dict(zip(labels, chain([ALONE], cycle(COLOURS)), strict=False))
