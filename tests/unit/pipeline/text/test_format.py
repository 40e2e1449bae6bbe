"""Figures as text: numbers, sizes, durations."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from matplotlib.ticker import EngFormatter
from shadowsync.pipeline.report.rendering.wording import metric_name
from shadowsync.pipeline.text.format import (
    MISSING,
    amount,
    count,
    data_rate,
    data_size,
    duration,
    number,
    percent,
)
from shadowsync.tests.support.outside.page_script import needs_node, on_page

SIZES = [
    (0, "0 B"),
    (999, "999 B"),
    (999.6, "1.00 kB"),
    (1500, "1.50 kB"),
    (12.4e6, "12.4 MB"),
    (345.1e6, "345 MB"),
    (999.6e6, "1.00 GB"),
    (3.2e9, "3.20 GB"),
    (2.5e12, "2.50 TB"),
    (5e15, "5,000 TB"),
]


@pytest.mark.parametrize(("value", "text"), SIZES)
def test_sizes(value: float, text: str) -> None:
    assert data_size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0312, "31.2 ms"),
        (0.9996, "1 s"),
        (42.5, "42.5 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (185, "3 min 5 s"),
        (3661, "1 h 1 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers() -> None:
    assert (count(1_005_120), number(0.81234), number(4.74, 1)) == ("1,005,120", "0.8123", "4.7")
    assert (amount(10_234.5), amount(0.0213)) == ("10,234", "0.0213")
    assert (amount(-10_234.5), amount(3.4e38), amount(-0.5)) == ("-10,234", "3.4e+38", "-0.5")
    assert (percent(0.8536), percent(0.8536, 1), data_rate(5e6)) == ("85%", "85.4%", "5.00 MB/s")


@pytest.mark.parametrize("form", [count, number, amount, percent, data_size, data_rate, duration])
def test_what_was_not_measured_is_no_zero(form: object) -> None:
    assert callable(form)
    assert form(None) == MISSING
    assert form(None, missing="not measured") == "not measured"


NUMBERS = [0.81234, 0.0, 12_345.678, -3.26]


@needs_node
@pytest.mark.parametrize(
    ("written", "form", "values"),
    [
        ("words.size(value)", data_size, [value for value, _ in SIZES[:-1]]),
        (
            *("words.duration(value)", duration),
            [0, 0.00042, 0.0312, 0.9994, 0.9996, 5, 42.53, 59.94, 59.96, 60, 61, 3600, 7799.6],
        ),
        (
            *("words.metricName(value)", metric_name),
            [
                "ne",
                "auc",
                "logloss",
                "calibration",
                "pr_auc",
                "lift",
                "calibration_error",
                "ne/a",
                "pr_auc/a/b",
            ],
        ),
        *((f"words.number(value, {n})", partial(number, digits=n), NUMBERS) for n in (0, 1, 4)),
        # The axes are those of the pictures.
        (
            *("words.mark(value)", lambda value: EngFormatter()(value).strip()),
            [0, 1, 500, 1000, 25_000, 71_500, 1_500_000, 2_000_000_000],
        ),
    ],
)
def test_the_page_writes_the_same(
    tmp_path: Path, written: str, form: Callable[[Any], str], values: list[Any]
) -> None:
    shown = on_page(tmp_path, f"return {json.dumps(values)}.map((value) => {written})", "words")
    assert shown == [form(value) for value in values]


def test_names_of_metrics() -> None:
    assert (metric_name("pr_auc"), metric_name("pr_auc/a/b")) == ("PR-AUC", "PR-AUC of a/b")
