"""The plots of a comparison, as SVG in the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from ...pipeline.report.curves import legend_below
from ...pipeline.report.model import Report
from ...pipeline.report.placement import Point
from .curves import from_start, mean_curve
from .record import Comparison
from .summary import Row
from .variants import REFERENCE

# Stands for the page's text colour until the picture is done; used for nothing else.
INK: Final = "#010203"
COLOURS: Final = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#a855f7", "#ec4899", "#14b8a6", "#84cc16")
ALONE: Final = "#8b8b8b"

# Title, what it shows, the axes, and the curves of one report.
CURVES: Final[tuple[tuple[str, str, str, str, Callable[[Report], list[list[Point]]]], ...]] = (
    (
        "NE during training",
        "NE of the examples since the last point, each scored before it is trained on; mean over seeds.",
        "examples trained",
        "NE, lower is better",
        lambda report: [report.curves.ne],
    ),
    (
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
        "Divergence over time",
        "How far the replicas are apart, from a sample of their elements; mean over seeds.",
        "seconds since the first",
        "‖w − mean‖ / ‖mean‖",
        lambda report: [from_start(report.curves.divergence)],
    ),
)

Reports = Mapping[str, Sequence[Report]]
Style = dict[str, Any]


def draw(comparison: Comparison, rows: Sequence[Row], reports: Reports) -> list[tuple[str, str, str]]:
    """Draw each plot; return its title, what it shows, and the SVG.

    A plot without points says so.
    """
    styles = _styles(rows)
    pictures = [
        (
            "Quality against throughput against bytes",
            "A dot is a run; a ring is the mean of an algorithm's runs. A larger ring means more bytes of "
            "synchronization.",
            figure_svg(_trade(comparison, rows, styles), "trade"),
        ),
        (
            f"NE minus that of {REFERENCE}",
            "Paired by seed, with 95% intervals; an interval that crosses the line is inconclusive.",
            figure_svg(_forest(rows, styles), "forest"),
        ),
    ]
    for title, text, x, y, get in CURVES:
        figure = _lines(reports, styles, x, y, get)
        pictures.append((title, text, figure_svg(figure, re.sub(r"\W", "", title))))
    return pictures


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
        text.set_color(INK)
    axes.margins(x=0.25)
    return finish(figure, axes, "no run has both an NE and a throughput", legend=False)


def _forest(rows: Sequence[Row], styles: Mapping[str, Style]) -> Figure:
    shown = [row for row in rows if row.ne_difference is not None]
    figure, axes = frame("difference of NE, left is better", "", height=max(1.6, 0.8 + 0.32 * len(shown)))
    for at, row in enumerate(reversed(shown)):
        value = row.ne_difference
        assert value is not None
        if value.low is not None and value.high is not None:
            axes.plot([value.low, value.high], [at, at], **styles[row.label])
        axes.plot([value.mean], [at], marker="o", markersize=5, color=styles[row.label]["color"])
    axes.set_yticks(range(len(shown)), [row.label for row in reversed(shown)], parse_math=False)
    axes.axvline(0.0, color=INK, linewidth=0.8)
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
    """Make a figure with axes in the page's colours."""
    figure = Figure(figsize=(5.6, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    figure.patch.set_alpha(0.0)
    axes.patch.set_alpha(0.0)
    for spine in axes.spines.values():
        spine.set_color(INK)
    axes.tick_params(colors=INK)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.grid(alpha=0.15, color=INK)
    return figure, axes


def finish(figure: Figure, axes: Axes, missing: str, *, legend: bool = True) -> Figure:
    """Add the legend, or say what is missing if nothing was drawn."""
    if not axes.lines and not axes.collections:
        axes.set_axis_off()
        axes.text(0.5, 0.5, missing, ha="center", va="center", transform=axes.transAxes, color=INK)
        return figure
    if legend:
        handles, labels = axes.get_legend_handles_labels()
        for text in legend_below(axes, handles, labels).get_texts():
            text.set_color(INK)
    return figure


def figure_svg(figure: Figure, salt: str) -> str:
    """Render SVG without declaration, other sites' names or fixed size."""
    target = io.StringIO()
    # Text stays text; the salt keeps the ids of two pictures on one page apart.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(target, format="svg", metadata={"Date": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace(INK, "currentColor")
