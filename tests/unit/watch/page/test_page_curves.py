"""The curves of validations on the page: one for each label, by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shadowsync.pipeline.text.format import percent
from shadowsync.tests.support.outside.page_script import PAGE, needs_node, on_page

pytestmark = needs_node
VALIDATION = [
    {"examples": 500, "value": 0.9, "metrics": {"ne": 0.9, "auc": 0.7, "ne/bought": 0.8, "auc/bought": 0.75}},
    {"examples": 900, "value": 0.8, "metrics": {"ne": 0.8, "ne/a/b": 0.5}},
]


@pytest.mark.parametrize(("metric", "headline"), [("ne", [[500, 0.9], [900, 0.8]]), ("auc", None)])
def test_each_label_has_its_curve(tmp_path: Path, metric: str, headline: list[list[float]] | None) -> None:
    part = json.dumps({"validation": VALIDATION, "validation_metric": metric})
    found = on_page(tmp_path, f"return Object.fromEntries(charts.validationCurves({part}))", "charts")
    expected = {"validation/bought": [[500, 0.8]], "validation/a/b": [[900, 0.5]]}
    assert found == expected | ({"validation": headline} if headline else {})


def test_of_a_further_label_ne_and_auc_are_shown(tmp_path: Path) -> None:
    names = ["ne", "lift", "ne/bought", "auc/a/b", "lift/bought", "logloss/ne"]
    found = on_page(tmp_path, f"return {json.dumps(names)}.filter(words.isShown)", "words")
    assert found == ["ne", "lift", "ne/bought", "auc/a/b"]


def test_first_points_far_above_all_others_leave_the_axis(tmp_path: Path) -> None:
    places = list(range(1, 41))
    steady: list[float | None] = [1.0 - 0.02 * at / 40 for at in places]
    curves: list[list[list[float | None]]] = [
        [steady],
        [[1.02, *steady[1:]]],
        [[14.7, *steady[1:]]],
        [[14.7, *steady[1:]], [None] * 39 + [2.0]],
        [[*steady[:30], 14.7, *steady[31:]]],
    ]
    data = json.dumps([[places, *one] for one in curves])
    top = "Math.max(...data.slice(1).flat().filter((value) => value != null))"
    found = on_page(tmp_path, f"return {data}.map((data) => charts.readableTop(data, {top}))", "charts")
    assert found[:2] == [steady[0], 1.02]
    assert found[2] < 1.02
    assert 2.0 < found[3] < 14.7
    assert found[4] == 14.7


def test_the_latest_hours_are_told_beside_ne(tmp_path: Path) -> None:
    hours = [{"hour": at, "examples": 9, "ne": ne} for at, ne in enumerate([0.9, 0.8, 0.7, None, 0.65])]
    given = json.dumps([hours, hours[:2], [], None])
    found = on_page(tmp_path, f"return {given}.map(words.byTheHour)", "words")
    assert found == ["; by the hour 0.8000, 0.7000, –, 0.6500", "; by the hour 0.9000, 0.8000", "", ""]


def test_a_share_has_the_digits_of_the_report(tmp_path: Path) -> None:
    shares = "[[0.996, 1], [0.996], [null, 1]].map((one) => words.share(...one))"
    found = on_page(tmp_path, f"return {shares}", "words")
    assert found == [percent(0.996, 1), percent(0.996), "–"]
    assert '"Ids that share rows", share(embedding.sharing_examples, 1)' in (PAGE / "figures.js").read_text(
        "utf-8"
    )
