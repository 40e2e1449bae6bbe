"""The pictures of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

# Not pyplot, which keeps global state and is bound to one thread.
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import EngFormatter, StrMethodFormatter

from ...atomic_file import atomic_file
from ..document import NE_PICTURE, SYNC_GAP_PICTURE, THROUGHPUT_PICTURE, Report
from ..tables.placement import Point
from .wording import has_log_loss

_INCHES: Final = (8.0, 4.5)
_DOTS_PER_INCH: Final = 110
_LEGEND_ENTRIES: Final = 12
_LEGEND_COLUMNS: Final = 4
_MARKED_POINTS: Final = 40
# The first tenth of a curve; how many times the span of the others is far above them; how many others say
# where a curve is.
_EARLY: Final = 0.1
_FAR: Final = 3.0
_ENOUGH: Final = 8
_MARGIN: Final = 0.05
# How many times the usual step between two points is a pause.
_PAUSE: Final = 3.0


def draw_curves(report: Report, directory: Path) -> list[Path]:
    """Draw ne.png, throughput.png and sync_gap.png into `directory`, each atomically.

    A curve without points gives a picture that says so; scores that are no probabilities have no ne.png. Any
    thread may call; raises ResourceError if a picture cannot be written.
    """
    paths = []
    for name, figure in figures_of(report).items():
        with atomic_file(directory / name) as file:
            figure.savefig(file, format="png")
        paths.append(directory / name)
    return paths


def figures_of(report: Report) -> dict[str, Figure]:
    """Draw the pictures of a report, by the names of their files."""
    return {
        **({NE_PICTURE: _ne(report)} if has_log_loss(report) else {}),
        THROUGHPUT_PICTURE: _by_trainer(
            f"{report.run}: throughput", "examples/s", report.curves.throughput, "no throughput was measured"
        ),
        SYNC_GAP_PICTURE: _by_trainer(
            f"{report.run}: sync gap ({report.sync.algorithm}, {report.sync.mode})",
            "iterations between two rounds",
            # A gap of 0 would look like replicas that are always the same.
            report.curves.sync_gap if report.sync.rounds else {},
            "no sync gap was recorded" if report.sync.rounds else "no synchronization round was completed",
        ),
    }


def _ne(report: Report) -> Figure:
    figure, axes = _frame(f"{report.run}: normalized entropy", "examples trained", "NE (lower is better)")
    axes.xaxis.set_major_formatter(EngFormatter())
    points = report.curves.ne
    if not points:
        return _empty(axes, figure, "no normalized entropy was measured")
    label, highest = "in training, since the last point", max(value for _, value in points)
    lines = [value for value in _held_out(report) if value is not None]
    if (top := readable_top(points, lines)) < highest:
        label += f"; the first ones reach {highest:.3g}"
    _line(axes, points, label)
    validation = report.validation
    if validation is not None and validation.metric == "ne" and report.curves.validation:
        scored = list(zip(*report.curves.validation, strict=True))
        axes.plot(*scored, linestyle="", marker="D", markersize=5, color="tab:orange", label="validation")
    headline = report.headline
    if headline is not None and headline.ne is not None:
        label = f"held-out, of {headline.model}: {headline.ne:.4f}"
        axes.axhline(headline.ne, color="tab:green", linestyle="--", label=label)
    if report.eval is not None and report.eval.teacher_ne is not None:
        label = f"held-out, of the teacher: {report.eval.teacher_ne:.4f}"
        axes.axhline(report.eval.teacher_ne, color="tab:red", linestyle=":", label=label)
    if top < highest:
        least = min([*lines, *(value for _, value in points)])
        axes.set_ylim(least - _MARGIN * (top - least), top)
    _legend(axes)
    return figure


def readable_top(points: Sequence[Point], others: Sequence[float] = ()) -> float:
    """Return the highest value that an axis needs for `points` and `others`.

    First points far above all others would squash the curve. The page does the same,
    watch/page/static/charts.js.
    """
    (first, _), (last, _), highest = points[0], points[-1], max(value for _, value in points)
    later = [value for place, value in points if place > first + _EARLY * (last - first)]
    if len(later) < _ENOUGH or min(later) == max(later):
        return highest
    most = max(*later, *others)
    span = most - min(*later, *others)
    return most + span if highest > most + _FAR * span else highest


def with_breaks(points: Sequence[Point]) -> list[Point]:
    """Return the points with a NaN where a pause begins.

    In a pause there is no point for much longer than most steps between two take. The page does the same,
    watch/page/static/charts.js.
    """
    steps = [after - before for (before, _), (after, _) in pairwise(points)]
    usual = sorted(steps)[len(steps) // 4] if steps else 0.0
    broken: list[Point] = []
    for number, point in enumerate(points):
        broken.append(point)
        if number < len(steps) and steps[number] > _PAUSE * usual > 0:
            broken.append((point[0] + usual, math.nan))
    return broken


def _alone(points: Sequence[Point]) -> list[int]:
    """Return the places of points without a neighbour, through which no line goes."""
    nothing = (math.nan, math.nan)
    around = zip([nothing, *points], points, [*points[1:], nothing], strict=False)
    return [
        number
        for number, (before, point, after) in enumerate(around)
        if not math.isnan(point[1]) and math.isnan(before[1]) and math.isnan(after[1])
    ]


def _held_out(report: Report) -> list[float | None]:
    """Return the values of NE in the picture besides those of training."""
    scored = report.validation is not None and report.validation.metric == "ne"
    return [
        report.headline.ne if report.headline is not None else None,
        report.eval.teacher_ne if report.eval is not None else None,
        *(value for _, value in (report.curves.validation if scored else ())),
    ]


def _by_trainer(title: str, unit: str, curves: Mapping[str, Sequence[Point]], missing: str) -> Figure:
    figure, axes = _frame(title, "seconds since the start", unit)
    drawn = {name: points for name, points in curves.items() if points}
    if not drawn:
        return _empty(axes, figure, missing)
    for name, points in drawn.items():
        _line(axes, points, name)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    _legend(axes)
    return figure


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    total = len(labels)
    shown = slice(0, _LEGEND_ENTRIES)
    title = f"{_LEGEND_ENTRIES} of {total}" if total > _LEGEND_ENTRIES else None
    legend_below(axes, handles[shown], labels[shown], title=title)


def legend_below(
    axes: Axes, handles: Sequence[Artist], labels: Sequence[str], *, title: str | None = None
) -> Legend:
    """Put a legend below the axes, where it covers no curve.

    It has as many columns as are wide enough. The layout of the figure must be "constrained".
    """
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    for columns in range(min(_LEGEND_COLUMNS, max(1, len(labels))), 0, -1):
        legend = figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=columns,
            fontsize="small",
            frameon=False,
            title=title,
        )
        for text in legend.get_texts():
            # A "$" in a name would otherwise start a formula.
            text.set_parse_math(False)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    return legend


def _frame(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    # A "$" in a name would otherwise start a formula.
    axes.set_title(title, parse_math=False)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes


def _line(axes: Axes, points: Sequence[Point], label: str) -> None:
    drawn = with_breaks(points)
    (line,) = axes.plot([p[0] for p in drawn], [p[1] for p in drawn], linewidth=1.4)
    # A few points are easier to read with marks; one without a neighbour has no line.
    marked = range(len(drawn)) if len(points) <= _MARKED_POINTS else _alone(drawn)
    line.set_marker("o" if marked else "")
    line.set_markersize(3)
    line.set_markevery(list(marked))
    # matplotlib leaves labels that start with "_" out of the legend.
    line.set_label(label.lstrip("_"))


def _empty(axes: Axes, figure: Figure, text: str) -> Figure:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, fontsize="large")
    return figure
