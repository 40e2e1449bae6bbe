"""report.json: it comes back equal, and cannot contradict itself."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError
from shadowsync.pipeline.report.document import Report

from .conftest import altered

# What the issue asks report.json to have at least.
REQUIRED = {
    "examples": ["read", "distinct", "trained", "replayed", "returned", "in_flight", "dropped", "bad_rows"],
    "throughput": ["examples_per_second", "per_trainer", "cpu_seconds_per_million"],
    "train": ["ne_progressive"],
    "eval": ["model", "ne", "auc", "logloss", "calibration", "examples", "teacher_ne", "gain_ratio"],
    "sync": ["algorithm", "mode", "rounds", "gap_mean", "gap_max", "bytes", "seconds_mean"],
    "staleness": ["embedding_mean"],
    "replicas": ["divergence"],
}


@pytest.mark.parametrize("name", ["full_report", "minimal_report", "red_report"])
def test_a_report_comes_back_from_json(name: str, request: pytest.FixtureRequest) -> None:
    report: Report = request.getfixturevalue(name)
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_json_has_what_was_promised(full_report: Report) -> None:
    body = json.loads(full_report.model_dump_json())
    for section, names in REQUIRED.items():
        assert set(names) <= set(body[section]), section
    assert {"elp", "wall_seconds", "versions", "ledger", "events", "nodes", "hardware"} <= set(body)
    assert body["eval"]["gain_ratio"] == 0.8536


def test_eval_is_of_the_headline(full_report: Report) -> None:
    """It is again in `eval_best`, if the last model is another."""
    now = altered(full_report, eval={"model": "the best", "ne": 0.7}, eval_last=full_report.eval)
    assert Report.model_validate_json(now.model_dump_json()) == now
    assert now.headline == now.eval
    assert json.loads(now.model_dump_json())["eval_best"]["ne"] == 0.7
    assert json.loads(full_report.model_dump_json())["eval_best"] is None, "the control"


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("sync", "control", {"bound": 1.0, "gap": 3}),
        ("sync", "control", None),
        ("train", "dense_updates", {"t": 1}),
        ("sync", "link_codecs", [{"trainer": "trainer-0", "codec": "int8"}]),
    ],
)
def test_a_report_of_before_is_read_without_what_is_gone(
    full_report: Report, section: str, name: str, value: Any
) -> None:
    assert Report.model_validate(_changed(full_report, section, **{name: value})) == full_report
    with pytest.raises(ValidationError, match=f"{name}_2"):
        Report.model_validate(_changed(full_report, section, **{f"{name}_2": value}))


def _changed(report: Report, section: str, **changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(report.model_dump_json())
    (body[section] if section else body).update(changes)
    return body


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("", {"outcome": "great"}),
        ("", {"surprise": 1}),
        ("", {"exit_code": 256}),
        ("", {"format_version": 2}),
        ("examples", {"read": -1}),
        ("examples", {"trained": 0.5}),
        ("train", {"ne_progressive": math.nan}),
        ("throughput", {"examples_per_second": math.inf}),
        ("eval", {"examples": 0}),
        ("ledger", {"adds_up": False}),
        ("ledger", {"identities": []}),
    ],
)
def test_a_report_that_cannot_be_is_refused(
    full_report: Report, section: str, changes: dict[str, Any]
) -> None:
    Report.model_validate(_changed(full_report, section))
    with pytest.raises(ValidationError, match=next(iter(changes))):
        Report.model_validate(_changed(full_report, section, **changes))
