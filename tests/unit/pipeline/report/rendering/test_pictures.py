"""The geometry of the pictures: legends beside the curves, and curves that end where a pause begins."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from shadowsync.lab.simulation.setting import Setting
from shadowsync.lab.simulation.sweep import draw_sweep, simulate_all
from shadowsync.pipeline.report.document import Curves, Report
from shadowsync.pipeline.report.rendering.curves import draw_curves, with_breaks

from ..conftest import altered


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved, in order."""
    saved: list[Figure] = []
    save = Figure.savefig

    def savefig(self: Figure, *args: Any, **how: Any) -> None:
        saved.append(self)
        save(self, *args, **how)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved


def legends(figure: Figure) -> list[Any]:
    of_axes = [axes.get_legend() for axes in figure.axes]
    return [*figure.legends, *(one for one in of_axes if one is not None)]


def check_legends(figure: Figure, entries: int) -> None:
    """There is one, of so many entries, inside the picture and outside the axes."""
    (legend,) = legends(figure)
    assert len(legend.get_texts()) == entries
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1
    for axes in figure.axes:
        assert not box.overlaps(axes.get_window_extent())


@pytest.mark.parametrize("trainers", [1, 2, 16])
@pytest.mark.parametrize("name", ["trainer-", "a-rather-long-name-of-a-$trainer$-in-a-far-region-"])
def test_no_legend_covers_a_curve(
    full_report: Report, tmp_path: Path, figures: list[Figure], trainers: int, name: str
) -> None:
    by_trainer = {f"{name}{at}": [(float(s), 9.0 + at) for s in range(60)] for at in range(trainers)}
    curves = {"throughput": by_trainer, "sync_gap": by_trainer, "validation": [(1e5, 0.9)]}
    draw_curves(altered(full_report, curves=curves), tmp_path)
    ne, *others = figures
    check_legends(ne, 3)
    for figure in others:
        check_legends(figure, min(12, trainers))


def test_no_legend_covers_a_simulated_curve(tmp_path: Path, figures: list[Figure]) -> None:
    costs: dict[str, Any] = {"step_seconds": 0.01, "round_cpu_seconds": 0.001, "link_bytes_per_second": 1e9}
    settings = [Setting(trainers=count, model_bytes=1_000_000, **costs) for count in (1, 2)]
    sweep = simulate_all("made up", {f"layout {at}": settings for at in range(3)})
    draw_sweep(sweep.series, tmp_path / "sweep.png")
    check_legends(figures[0], 3)


def segments(line: Any) -> list[list[float]]:
    """The places of the points of each piece that is drawn in one."""
    pieces: list[list[float]] = [[]]
    for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
        if math.isnan(y):
            pieces.append([])
        else:
            pieces[-1].append(float(x))
    return [piece for piece in pieces if piece]


@pytest.mark.parametrize("count", [10, 60], ids=["marked", "line"])
def test_a_curve_ends_where_a_pause_begins(
    full_report: Report, tmp_path: Path, figures: list[Figure], count: int
) -> None:
    first = [(at / 2, 3.0) for at in range(1, count)]
    second = [(100 + at / 2, 4.0) for at in range(1, count)]
    curves = Curves(ne=[], throughput={}, sync_gap={"trainer-0": [*first, *second, (200.0, 1.0)]})
    draw_curves(altered(full_report, curves=curves), tmp_path)
    (line,) = figures[-1].axes[0].get_lines()
    assert segments(line) == [[x for x, _ in first], [x for x, _ in second], [200.0]]
    # The last one has no line; without a mark it would not be seen.
    marked: Any = line.get_markevery()
    assert np.asarray(line.get_xdata())[marked][-1] == 200.0
    assert line.get_marker() == "o"


def test_steps_that_are_not_even_are_no_pause() -> None:
    uneven = [(float(x), 1.0) for x in (1, 2, 3, 5, 6, 8, 9, 11.5, 12, 13)]
    assert with_breaks(uneven) == uneven
    assert with_breaks([]) == []
    assert with_breaks(uneven[:1]) == uneven[:1]
    rare = [(float(at), 1.0) for at in itertools.accumulate([60, 80, 55, 70, 65])]
    assert with_breaks(rare) == rare, "seldom measured, but evenly"
    at_once = [(0.0, 1.0), (0.0, 2.0), (0.0, 3.0), (5.0, 4.0)]
    assert with_breaks(at_once) == at_once
