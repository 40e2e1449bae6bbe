"""The pictures of a data profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes

# The object API only: pyplot keeps global state and is bound to one thread.
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..checkpoint.whole_file import whole_file
from .profile import HEADS, DataProfile, IdProfile

TABLES_PICTURE: Final = "profile-tables.png"
MISSING_PICTURE: Final = "profile-missing.png"
NUMBERS_PICTURE: Final = "profile-numbers.png"
_DOTS_PER_INCH: Final = 110
_SHOWN: Final = 40
_NAME_CHARACTERS: Final = 24


def draw_profile(profile: DataProfile, folder: Path) -> list[str]:
    """Draws the pictures, each whole; gives their names. Any thread; raises ResourceError."""
    drawn = {
        TABLES_PICTURE: _tables(profile),
        MISSING_PICTURE: _missing(profile),
        NUMBERS_PICTURE: _numbers(profile),
    }
    for name, figure in drawn.items():
        with whole_file(folder / name) as file:
            figure.savefig(file, format="png")
    return list(drawn)


def _tables(profile: DataProfile) -> Figure:
    """Per table: different values against rows, and the head's share of all values."""
    columns = sorted(profile.ids, key=lambda column: column.distinct)[-_SHOWN:]
    figure, (left, right) = _frame(len(columns), len(profile.ids), "columns with a table")
    places = range(len(columns))
    left.barh(places, [max(column.distinct, 1) for column in columns], color="tab:blue", height=0.7)
    rows = [column.table_rows for column in columns]
    left.plot(rows, list(places), linestyle="", marker="|", markersize=11, markeredgewidth=2, color="black")
    left.set_xscale("log")
    left.set_xlim(left=0.8)
    left.set_xlabel("different values (bar), rows of the table (mark)")
    _names(left, [column.name for column in columns])
    _heads(right, columns)
    return figure


def _heads(axes: Axes, columns: Sequence[IdProfile]) -> None:
    places = list(range(len(columns)))
    shades = ("#08306b", "#2171b5", "#6baed6", "#c6dbef")
    before = [0.0] * len(columns)
    for head, shade in zip(HEADS, shades, strict=True):
        shares = [column.head[str(head)] for column in columns]
        widths = [share - last for share, last in zip(shares, before, strict=True)]
        axes.barh(places, widths, left=before, color=shade, height=0.7, label=f"top {head:,}")
        before = shares
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("share of all values that the most frequent ones have")
    axes.figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower right", ncols=4, fontsize="small"
    )
    _names(axes, [""] * len(columns))


def _missing(profile: DataProfile) -> Figure:
    """Per column: the share of missing values, and what the label says where there is none."""
    everything = [*profile.numbers, *profile.ids]
    some = sorted((column for column in everything if column.missing), key=lambda column: column.missing)
    columns = some[-_SHOWN:]
    figure, (left, right) = _frame(
        len(columns), len(everything), "columns, those with the most missing values"
    )
    if not columns:
        return _empty(figure, "every row has a value in every column")
    places = range(len(columns))
    left.barh(places, [column.missing for column in columns], color="tab:gray", height=0.7)
    left.set_xlim(0, 1)
    left.xaxis.set_major_formatter(PercentFormatter(1.0))
    left.set_xlabel("rows without a value")
    _names(left, [column.name for column in columns])
    for marker, color, label, rates in (
        ("o", "tab:blue", "rows with a value", [column.label_rate_present for column in columns]),
        ("x", "tab:red", "rows without", [column.label_rate_missing for column in columns]),
    ):
        shown = [(rate, place) for place, rate in zip(places, rates, strict=True) if rate is not None]
        right.plot(
            [rate for rate, _ in shown],
            [place for _, place in shown],
            linestyle="",
            marker=marker,
            color=color,
            label=label,
        )
    if profile.label_rate is not None:
        right.axvline(profile.label_rate, color="black", linewidth=0.8, label="all rows")
    right.xaxis.set_major_formatter(PercentFormatter(1.0))
    right.set_xlabel("share of label 1")
    right.legend(loc="best", fontsize="small")
    _names(right, [""] * len(columns))
    return figure


def _numbers(profile: DataProfile) -> Figure:
    """Per dense column: its quantiles, on a scale that is even near 0 and logarithmic far from it."""
    columns = [column for column in profile.numbers if column.quantiles][-_SHOWN:][::-1]
    height = 1.8 + 0.22 * max(len(columns), 6)
    figure = Figure(figsize=(11.0, height), dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    if not columns:
        return _empty(figure, "there is no number in any row")
    axes = figure.add_subplot()
    some = f"{len(columns)} of " if len(columns) < len(profile.numbers) else ""
    axes.set_title(f"{some}{len(profile.numbers)} columns of numbers", fontsize="medium")
    for place, column in enumerate(columns):
        low, least_quarter, middle, top_quarter, high = (
            column.quantiles[name] for name in ("1%", "25%", "50%", "75%", "99%")
        )
        first = not place
        axes.plot(
            [low, high], [place] * 2, color="#9ecae1", linewidth=3, label="1% to 99%" if first else None
        )
        axes.plot(
            [least_quarter, top_quarter],
            [place] * 2,
            color="#2171b5",
            linewidth=8,
            solid_capstyle="butt",
            label="25% to 75%" if first else None,
        )
        axes.plot([middle], [place], color="black", marker="|", markersize=13, markeredgewidth=2)
    axes.plot(
        [], [], color="black", marker="|", linestyle="", markersize=13, markeredgewidth=2, label="median"
    )
    axes.set_xscale("symlog", linthresh=1.0)
    axes.set_xlabel("number, in the units of the source")
    _names(axes, [column.name for column in columns])
    axes.legend(loc="best", fontsize="small")
    return figure


def _empty(figure: Figure, text: str) -> Figure:
    for axes in figure.axes:
        figure.delaxes(axes)
    figure.suptitle("")
    figure.text(0.5, 0.5, text, ha="center", va="center", fontsize="large")
    return figure


def _frame(shown: int, there_are: int, what: str) -> tuple[Figure, tuple[Axes, Axes]]:
    figure = Figure(figsize=(11.0, 1.8 + 0.22 * max(shown, 6)), dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    some = f"{shown} of {there_are}" if shown < there_are else f"{there_are}"
    figure.suptitle(f"{some} {what}", fontsize="medium")
    left, right = figure.subplots(1, 2)
    return figure, (left, right)


def _names(axes: Axes, names: Sequence[str]) -> None:
    cut = [name if len(name) <= _NAME_CHARACTERS else f"{name[: _NAME_CHARACTERS - 3]}..." for name in names]
    # A "$" in a name would otherwise start a formula.
    axes.set_yticks(range(len(cut)), cut, fontsize="small", parse_math=False)
    axes.set_ylim(-0.6, len(cut) - 0.4)
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)
