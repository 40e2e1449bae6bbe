"""The pictures of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# Not pyplot, which keeps global state and is bound to one thread.
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from ..atomic_file import atomic_file
from .model import NE_PICTURE, SYNC_GAP_PICTURE, THROUGHPUT_PICTURE, Report
from .placement import Point

_INCHES: Final = (8.0, 4.5)
_DOTS_PER_INCH: Final = 110
_LEGEND_ENTRIES: Final = 12
_MARKED_POINTS: Final = 40
# The first tenth of a curve; how many times the span of the others is far above them; how many others say
# where a curve is.
_EARLY: Final = 0.1
_FAR: Final = 3.0
_ENOUGH: Final = 8
_MARGIN: Final = 0.05


def draw_curves(report: Report, directory: Path) -> list[Path]:
    """Draw ne.png, throughput.png and sync_gap.png into `directory`, each atomically.

    A curve without points gives a picture that says so. Any thread may call; raises ResourceError if a
    picture cannot be written.
    """
    drawn = {
        NE_PICTURE: _ne(report),
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
    paths = []
    for name, figure in drawn.items():
        with atomic_file(directory / name) as file:
            figure.savefig(file, format="png")
        paths.append(directory / name)
    return paths


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

    First points far above all others would squash the curve. The page does the same, watch/page/charts.js.
    """
    (first, _), (last, _), highest = points[0], points[-1], max(value for _, value in points)
    later = [value for place, value in points if place > first + _EARLY * (last - first)]
    if len(later) < _ENOUGH or min(later) == max(later):
        return highest
    most = max(*later, *others)
    span = most - min(*later, *others)
    return most + span if highest > most + _FAR * span else highest


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
    _legend(axes)
    return figure


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    total = len(labels)
    title = f"{_LEGEND_ENTRIES} of {total}" if total > _LEGEND_ENTRIES else None
    shown = slice(0, _LEGEND_ENTRIES)
    legend = axes.legend(handles[shown], labels[shown], loc="best", fontsize="small", title=title)
    for text in legend.get_texts():
        text.set_parse_math(False)


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
    # A single point has no line; a few are easier to read with marks.
    marker = "o" if len(points) <= _MARKED_POINTS else ""
    (line,) = axes.plot([p[0] for p in points], [p[1] for p in points], linewidth=1.4)
    line.set_marker(marker)
    line.set_markersize(3)
    # matplotlib leaves labels that start with "_" out of the legend.
    line.set_label(label.lstrip("_"))


def _empty(axes: Axes, figure: Figure, text: str) -> Figure:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, fontsize="large")
    return figure
