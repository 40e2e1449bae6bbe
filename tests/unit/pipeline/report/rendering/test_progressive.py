"""What the report says of the progressive part."""

from __future__ import annotations

import pytest
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.quality import Progressive
from shadowsync.pipeline.report.rendering import wording
from shadowsync.pipeline.report.rendering.markdown import render_markdown

from ..conftest import altered


def with_part(report: Report, **changes: object) -> Report:
    """The report of a job with such a part."""
    facts = {
        "model": "the trainers' replicas, each before its step",
        "examples": 20_000,
        "trained": 20_000,
        "ne": 0.7123,
        "auc": 0.8011,
        "auc_error": 1e-6,
        "logloss": 0.3905,
    }
    part = Progressive.model_validate(facts | changes)
    return altered(report, train={"ne_progressive": 0.8, "progressive": part})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "NE 0.7123, AUC 0.8011 on 20,000 examples of the progressive part, of the trainers' replicas"),
        ({"examples": 15_000}, "on 15,000 of 20,000 examples of the progressive part"),
        (
            {"examples": 0, "ne": None, "auc": None, "auc_error": None, "logloss": None},
            "None of the 20,000 examples of the progressive part were scored.",
        ),
        ({"ne": None, "auc": None, "auc_error": None}, "logloss 0.3905, AUC not measured on 20,000"),
    ],
    ids=["all", "a trainer died", "none", "one label"],
)
def test_how_many_are_scored_of_how_many(full_report: Report, changes: dict[str, object], said: str) -> None:
    report = with_part(full_report, **changes)
    assert said in wording.progressive(report)
    assert said in render_markdown(report)


def test_without_held_out_data_it_is_the_headline(full_report: Report) -> None:
    text = "NE 0.7123, AUC 0.8011 on 20,000 examples of the progressive part, of the trainers' replicas"
    report = with_part(full_report)
    assert not wording.quality(report).startswith(text)
    alone = altered(report, eval=None)
    assert wording.quality(alone).startswith(text)
    page = render_markdown(alone)
    assert f"**{text}" in page
    assert page.count(text) == 1
    assert "not evaluated" not in page


def test_without_the_part_nothing_is_said(full_report: Report) -> None:
    assert wording.progressive(full_report) == ""
    assert "progressive part" not in render_markdown(full_report)
