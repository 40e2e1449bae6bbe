"""The pictures are pictures, and of what the report says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from numpy.typing import NDArray
from shadowsync.pipeline.errors import ResourceError
from shadowsync.pipeline.report.model import Curves, Report
from shadowsync.pipeline.report.quality import Validation
from shadowsync.pipeline.report.rendering.curves import draw_curves, readable_top
from shadowsync.pipeline.report.rendering.markdown import render_markdown
from shadowsync.pipeline.report.run_folders.write import absent_pictures, write_report

NAMES = ["ne.png", "throughput.png", "sync_gap.png"]


def _drawn(report: Report, folder: Path) -> dict[str, NDArray[Any]]:
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


def test_full_pictures_show_curves_and_empty_ones_none(
    full_report: Report, minimal_report: Report, tmp_path: Path
) -> None:
    full, empty = _drawn(full_report, tmp_path / "full"), _drawn(minimal_report, tmp_path / "empty")
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
    assert full_report.eval is not None
    ranks = {"ne": None, "logloss": None, "auc": 0.7}
    evaluation = full_report.eval.model_copy(update=ranks) if held_out else None
    train = full_report.train.model_copy(update={"ne_progressive": None, "progressive": None})
    report = full_report.model_copy(update={"eval": evaluation, "eval_last": None, "train": train})
    write_report(tmp_path, report)
    assert {path.name for path in tmp_path.glob("*.png")} == {*NAMES[1:]}
    assert absent_pictures(tmp_path, report) == ()
    assert absent_pictures(tmp_path, full_report) == ("ne.png",), "the control"
    assert "NE in training" not in render_markdown(report)
    assert "NE in training" in render_markdown(full_report)


def test_the_teacher_has_a_line_when_it_is_known(full_report: Report, tmp_path: Path) -> None:
    assert full_report.eval is not None
    unknown = full_report.eval.model_copy(update={"teacher_ne": None, "gain_ratio": None})
    with_teacher = _drawn(full_report, tmp_path / "with")["ne.png"]
    without = _drawn(full_report.model_copy(update={"eval": unknown}), tmp_path / "without")["ne.png"]

    def red(picture: NDArray[Any]) -> int:
        return int(((picture[..., 0] > 0.7) & (picture[..., 1] < 0.4) & (picture[..., 2] < 0.4)).sum())

    assert red(with_teacher) > 100
    assert red(without) == 0


def test_the_held_out_line_is_of_the_model_in_the_headline(full_report: Report, tmp_path: Path) -> None:
    assert full_report.eval is not None
    best = full_report.eval.model_copy(update={"ne": 0.5, "model": "the best one"})
    last = _drawn(full_report, tmp_path / "last")["ne.png"]
    both = _drawn(
        full_report.model_copy(update={"eval": best, "eval_last": full_report.eval}), tmp_path / "both"
    )["ne.png"]
    alone = _drawn(full_report.model_copy(update={"eval": best}), tmp_path / "alone")["ne.png"]
    assert not np.array_equal(both, last)
    assert np.array_equal(both, alone)


def test_without_a_round_there_is_no_gap_of_zero(full_report: Report, tmp_path: Path) -> None:
    assert full_report.curves.sync_gap
    none = full_report.model_copy(update={"sync": full_report.sync.model_copy(update={"rounds": 0})})
    assert _coloured(_drawn(none, tmp_path / "none")["sync_gap.png"]) == 0
    assert _coloured(_drawn(full_report, tmp_path / "some")["sync_gap.png"]) > 1000


def test_odd_curves_are_drawn(full_report: Report, tmp_path: Path) -> None:
    """One point; a trainer without points; more trainers than a legend holds; names like formulas."""
    many = {f"_trainer $x_{n}$": [(float(s), float(n)) for s in range(3)] for n in range(40)}
    curves = Curves(ne=[(512.0, 0.9)], throughput=many, sync_gap={"trainer-0": [], "trainer-1": [(1.0, 0.0)]})
    changed = full_report.model_copy(update={"curves": curves, "run": "a$b$c"})
    for name, picture in _drawn(changed, tmp_path / "odd").items():
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
        curves = full_report.curves.model_copy(update={"ne": spiked(value), "validation": []})
        alone = {"curves": curves, "eval": None, "eval_last": None}
        picture = _drawn(full_report.model_copy(update=alone), tmp_path / str(value))["ne.png"]
        right = picture[60:, picture.shape[1] // 3 :]
        blue = (right[..., 2] > 0.6) & (right[..., 0] < 0.3)
        return int(blue.any(axis=1).sum())

    assert rows_of_the_curve(14.7) > 50
    assert rows_of_the_curve(1.02) > 50


def test_a_folder_that_is_not_there_is_named(full_report: Report, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"ne\.png: cannot be written"):
        draw_curves(full_report, tmp_path / "absent")


def test_validations_are_marked_where_their_metric_is_ne(full_report: Report, tmp_path: Path) -> None:
    curves = full_report.curves.model_copy(update={"validation": [(1e5, 0.9), (2e5, 0.85), (3e5, 0.87)]})
    record = Validation(
        metric="ne", count=3, best=0.85, best_examples=200_000, folder="best", best_is_last=False
    )

    def orange(name: str, metric: str) -> int:
        validated = full_report.model_copy(
            update={"curves": curves, "validation": record.model_copy(update={"metric": metric})}
        )
        picture = _drawn(validated, tmp_path / name)["ne.png"]
        return int(
            ((picture[..., 0] > 0.9) & (abs(picture[..., 1] - 0.5) < 0.1) & (picture[..., 2] < 0.2)).sum()
        )

    assert orange("ne", "ne") > orange("auc", "auc") + 20
