"""The pictures of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from ...pipeline.atomic_file import atomic_file
from ...pipeline.report.document import Report
from ...pipeline.report.rendering.curves import legend_below
from ...pipeline.report.tables.placement import Point
from .curves import from_start, mean_curve
from .record import Comparison
from .summary import Row
from .variants import REFERENCE

COLOURS: Final = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#a855f7", "#ec4899", "#14b8a6", "#84cc16")
ALONE: Final = "#8b8b8b"
_DOTS_PER_INCH: Final = 110

TRADE: Final = (
    "trade.png",
    "Quality against throughput against bytes",
    "A dot is a run; a ring is the mean of an algorithm's runs. A larger ring means more bytes of"
    " synchronization.",
)
FOREST: Final = (
    "ne_difference.png",
    f"NE minus that of {REFERENCE}",
    "Paired by seed, with 95% intervals; an interval that crosses the line is inconclusive.",
)
# File, title, what it shows, the axes, and the curves of one report.
CURVES: Final[tuple[tuple[str, str, str, str, str, Callable[[Report], list[list[Point]]]], ...]] = (
    (
        "ne.png",
        "NE during training",
        "NE of the examples since the last point, each scored before it is trained on; mean over seeds.",
        "examples trained",
        "NE, lower is better",
        lambda report: [report.curves.ne],
    ),
    (
        "sync_gap.png",
        "Sync gap over time",
        "Iterations of a trainer between two completed rounds; mean over trainers and seeds.",
        "seconds since the first",
        "iterations",
        # Without rounds there is no gap between two.
        lambda report: (
            [from_start(curve) for curve in report.curves.sync_gap.values()] if report.sync.rounds else []
        ),
    ),
    (
        "divergence.png",
        "Divergence over time",
        "How far the replicas are apart, from a sample of their elements; mean over seeds.",
        "seconds since the first",
        "‖w − mean‖ / ‖mean‖",
        lambda report: [from_start(report.curves.divergence)],
    ),
)
PICTURES: Final = (TRADE, FOREST, *(curve[:3] for curve in CURVES))
"""File, title and text of each picture."""

Reports = Mapping[str, Sequence[Report]]
Style = dict[str, Any]


def draw(comparison: Comparison, rows: Sequence[Row], reports: Reports) -> dict[str, Figure]:
    """Draw each picture, by its file; one without points says so."""
    styles = _styles(rows)
    figures = {TRADE[0]: _trade(comparison, rows, styles), FOREST[0]: _forest(rows, styles)}
    return figures | {file: _lines(reports, styles, x, y, get) for file, _, _, x, y, get in CURVES}


def write_pictures(folder: Path, figures: Mapping[str, Figure]) -> None:
    """Write PNG files, each atomically."""
    for name, figure in figures.items():
        with atomic_file(folder / name) as file:
            figure.savefig(file, format="png")


def _styles(rows: Sequence[Row]) -> dict[str, Style]:
    """Choose one colour per algorithm.

    Lines are solid for shadow mode, dashed for fixed rates.
    """
    colours: dict[str, str] = {}
    styles: dict[str, Style] = {}
    for row in rows:
        if row.label == REFERENCE:
            styles[row.label] = {"color": ALONE, "linestyle": "-."}
            continue
        colour = colours.setdefault(row.variant.algorithm, COLOURS[len(colours) % len(COLOURS)])
        every = row.variant.every
        style: Any = "-" if every is None else (0, (5, 2)) if every <= 10 else (0, (1, 1.5))
        styles[row.label] = {"color": colour, "linestyle": style}
    return styles


def _trade(comparison: Comparison, rows: Sequence[Row], styles: Mapping[str, Style]) -> Figure:
    figure, axes = frame("examples/s", "NE, lower is better")
    axes.xaxis.set_major_formatter(EngFormatter())
    most = max((row.sync_bytes or 0.0 for row in rows), default=0.0) or 1.0
    for row in rows:
        style, size = styles[row.label], 30 + 400 * (row.sync_bytes or 0.0) / most
        dots = [
            (run.figures.examples_per_second, run.figures.ne)
            for run in comparison.of(row.label)
            if run.figures and run.figures.ne is not None and run.figures.examples_per_second is not None
        ]
        if not dots or row.ne is None or row.examples_per_second is None:
            continue
        axes.scatter([x for x, _ in dots], [y for _, y in dots], s=10, color=style["color"], alpha=0.6)
        axes.scatter(
            [row.examples_per_second],
            [row.ne],
            s=size,
            facecolors="none",
            edgecolors=style["color"],
            linewidths=1.5,
        )
        place = (row.examples_per_second, row.ne)
        far = 3 + size**0.5 / 2
        text = axes.annotate(row.label, place, (far, 0), textcoords="offset points", va="center", fontsize=8)
        text.set_parse_math(False)
    axes.margins(x=0.25)
    return finish(figure, axes, "no run has both an NE and a throughput", legend=False)


def _forest(rows: Sequence[Row], styles: Mapping[str, Style]) -> Figure:
    shown = [row for row in rows if row.ne_difference is not None]
    figure, axes = frame("difference of NE, left is better", "", height=max(1.6, 0.8 + 0.32 * len(shown)))
    for y, row in enumerate(reversed(shown)):
        value = row.ne_difference
        assert value is not None
        if value.low is not None and value.high is not None:
            axes.plot([value.low, value.high], [y, y], **styles[row.label])
        axes.plot([value.mean], [y], marker="o", markersize=5, color=styles[row.label]["color"])
    axes.set_yticks(range(len(shown)), [row.label for row in reversed(shown)], parse_math=False)
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    return finish(figure, axes, "no run was paired with one trainer's", legend=False)


def _lines(
    reports: Reports,
    styles: Mapping[str, Style],
    x: str,
    y: str,
    get: Callable[[Report], list[list[Point]]],
) -> Figure:
    figure, axes = frame(x, y)
    axes.xaxis.set_major_formatter(EngFormatter())
    for label, style in styles.items():
        grid, values = mean_curve([curve for report in reports.get(label, ()) for curve in get(report)])
        if len(grid):
            axes.plot(grid, values, linewidth=1.5, label=_legend_text(label), **style)
    return finish(figure, axes, "nothing was measured")


def _legend_text(label: str) -> str:
    # matplotlib leaves labels that start with "_" out of the legend.
    return label.lstrip("_")


def frame(x: str, y: str, height: float = 3.3) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, height), dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.15)
    return figure, axes


def finish(figure: Figure, axes: Axes, missing: str, *, legend: bool = True) -> Figure:
    """Add the legend, or say what is missing if nothing was drawn."""
    if not axes.lines and not axes.collections:
        axes.set_axis_off()
        axes.text(0.5, 0.5, missing, ha="center", va="center", transform=axes.transAxes)
        return figure
    if legend:
        legend_below(axes, *axes.get_legend_handles_labels())
    return figure
