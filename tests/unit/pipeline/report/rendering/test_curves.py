"""The pictures are pictures, and of what the report says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from numpy.typing import NDArray
from shadowsync.pipeline.errors import ResourceError
from shadowsync.pipeline.report.document import Curves, Report
from shadowsync.pipeline.report.quality import Validation
from shadowsync.pipeline.report.rendering.curves import draw_curves, readable_top
from shadowsync.pipeline.report.rendering.markdown import render_markdown
from shadowsync.pipeline.report.run_folders.write import absent_pictures, write_report

from ..conftest import altered

NAMES = ["ne.png", "throughput.png", "sync_gap.png"]
Pictures = dict[str, NDArray[Any]]


def _drawn(report: Report, folder: Path) -> Pictures:
    folder.mkdir()
    paths = draw_curves(report, folder)
    assert [path.name for path in paths] == NAMES
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    return {path.name: matplotlib.image.imread(path)[..., :3] for path in paths}


def _coloured(picture: NDArray[Any]) -> int:
    """Pixels that are neither black, white nor grey: only curves have colours."""
    return int((np.ptp(picture, axis=2) > 0.2).sum())


@pytest.fixture(scope="module")
def full(full_report: Report, tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    return _drawn(full_report, tmp_path_factory.mktemp("drawn") / "full")


def test_full_pictures_show_curves_and_empty_ones_none(
    full: Pictures, minimal_report: Report, tmp_path: Path
) -> None:
    empty = _drawn(minimal_report, tmp_path / "empty")
    for name in NAMES:
        assert full[name].shape[0] >= 400
        assert full[name].shape[1] >= 800
        assert _coloured(full[name]) > 1000, name
        assert _coloured(empty[name]) == 0, name
        # The sentence that says why it is empty is there: dark pixels in the middle.
        height, width = empty[name].shape[:2]
        middle = empty[name][height // 2 - 20 : height // 2 + 20, width // 3 : 2 * width // 3]
        assert (middle < 0.3).any(), name


@pytest.mark.parametrize("held_out", [True, False])
def test_scores_that_are_no_probabilities_have_no_picture_of_ne(
    full_report: Report, tmp_path: Path, held_out: bool
) -> None:
    """Nor a row of it, and nobody misses it; without held-out rows the training says so."""
    evaluation = {"ne": None, "logloss": None, "auc": 0.7} if held_out else None
    report = altered(full_report, eval=evaluation, train={"ne_progressive": None, "progressive": None})
    write_report(tmp_path, report)
    assert {path.name for path in tmp_path.glob("*.png")} == {*NAMES[1:]}
    assert absent_pictures(tmp_path, report) == ()
    assert absent_pictures(tmp_path, full_report) == ("ne.png",), "the control"
    assert "NE in training" not in render_markdown(report)
    assert "NE in training" in render_markdown(full_report)


def test_the_teacher_has_a_line_when_it_is_known(full_report: Report, full: Pictures, tmp_path: Path) -> None:
    unknown = altered(full_report, eval={"teacher_ne": None, "gain_ratio": None})
    without = _drawn(unknown, tmp_path / "without")["ne.png"]

    def red(picture: NDArray[Any]) -> int:
        return int(((picture[..., 0] > 0.7) & (picture[..., 1] < 0.4) & (picture[..., 2] < 0.4)).sum())

    assert red(full["ne.png"]) > 100
    assert red(without) == 0


def test_the_held_out_line_is_of_the_model_in_the_headline(
    full_report: Report, full: Pictures, tmp_path: Path
) -> None:
    best = altered(full_report, eval={"ne": 0.5, "model": "the best one"})
    both = _drawn(altered(best, eval_last=full_report.eval), tmp_path / "both")["ne.png"]
    alone = _drawn(best, tmp_path / "alone")["ne.png"]
    assert not np.array_equal(both, full["ne.png"])
    assert np.array_equal(both, alone)


def test_without_a_round_there_is_no_gap_of_zero(full_report: Report, full: Pictures, tmp_path: Path) -> None:
    assert full_report.curves.sync_gap
    assert _coloured(_drawn(altered(full_report, sync={"rounds": 0}), tmp_path / "none")["sync_gap.png"]) == 0
    assert _coloured(full["sync_gap.png"]) > 1000


def test_odd_curves_are_drawn(full_report: Report, tmp_path: Path) -> None:
    """One point; a trainer without points; more trainers than a legend holds; names like formulas."""
    many = {f"_trainer $x_{n}$": [(float(s), float(n)) for s in range(3)] for n in range(40)}
    curves = Curves(ne=[(512.0, 0.9)], throughput=many, sync_gap={"trainer-0": [], "trainer-1": [(1.0, 0.0)]})
    for name, picture in _drawn(altered(full_report, curves=curves, run="a$b$c"), tmp_path / "odd").items():
        assert _coloured(picture) > 20, name


STEADY = [(float(at), 1.0 - 0.02 * at / 40) for at in range(1, 41)]


def spiked(value: float) -> list[tuple[float, float]]:
    return [(1.0, value), *STEADY[1:]]


def test_first_points_far_above_all_others_leave_the_axis() -> None:
    assert readable_top(STEADY) == STEADY[0][1]
    assert readable_top(spiked(1.02)) == 1.02, "a curve that falls"
    assert readable_top(spiked(14.7)) < 1.02
    # What is beside the curve needs its place, too; and a few points do not say where a curve is.
    assert 2.0 < readable_top(spiked(14.7), [2.0]) < 14.7
    assert readable_top(spiked(14.7)[:5]) == 14.7
    # A peak that comes later is no beginning.
    assert readable_top([*STEADY[:30], (31.0, 14.7), *STEADY[31:]]) == 14.7


def test_an_early_peak_does_not_squash_the_picture(full_report: Report, tmp_path: Path) -> None:
    def rows_of_the_curve(value: float) -> int:
        alone = altered(full_report, curves={"ne": spiked(value), "validation": []}, eval=None)
        picture = _drawn(alone, tmp_path / str(value))["ne.png"]
        right = picture[60:, picture.shape[1] // 3 :]
        blue = (right[..., 2] > 0.6) & (right[..., 0] < 0.3)
        return int(blue.any(axis=1).sum())

    assert rows_of_the_curve(14.7) > 50
    assert rows_of_the_curve(1.02) > 50


def test_a_folder_that_is_not_there_is_named(full_report: Report, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"ne\.png: cannot be written"):
        draw_curves(full_report, tmp_path / "absent")


def test_validations_are_marked_where_their_metric_is_ne(full_report: Report, tmp_path: Path) -> None:
    curves = {"validation": [(1e5, 0.9), (2e5, 0.85), (3e5, 0.87)]}

    def orange(metric: str) -> int:
        record = Validation(
            metric=metric, count=3, best=0.85, best_examples=200_000, folder="best", best_is_last=False
        )
        validated = altered(full_report, curves=curves, validation=record)
        red, green, blue = np.moveaxis(_drawn(validated, tmp_path / metric)["ne.png"], 2, 0)
        return int(((red > 0.9) & (abs(green - 0.5) < 0.1) & (blue < 0.2)).sum())

    assert orange("ne") > orange("auc") + 20
