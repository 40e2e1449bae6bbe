"""Figures as text: numbers, sizes, durations."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import shadowsync
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
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node runs the page's JavaScript")
PAGE_WORDS = Path(shadowsync.__file__).resolve().parent / "watch" / "page" / "static" / "words.js"


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


def _of_the_page(tmp_path: Path, expression: str) -> list[str]:
    """What an expression over the exports of words.js gives."""
    module = tmp_path / "words.mjs"
    module.write_text(PAGE_WORDS.read_text("utf-8"), encoding="utf-8")
    script = (
        f"import * as words from {json.dumps(module.as_uri())}; console.log(JSON.stringify({expression}))"
    )
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script], check=True, capture_output=True, text=True, timeout=60
    )
    found: list[str] = json.loads(done.stdout)
    return found


@needs_node
def test_the_page_has_the_same_sizes(tmp_path: Path) -> None:
    values = json.dumps([value for value, _ in SIZES[:-1]])
    assert _of_the_page(tmp_path, f"{values}.map(words.size)") == [text for _, text in SIZES[:-1]]


@needs_node
def test_the_page_has_the_same_durations(tmp_path: Path) -> None:
    values = [0, 0.00042, 0.0312, 0.9994, 0.9996, 5, 42.53, 59.94, 59.96, 60, 61, 3600, 7799.6]
    assert _of_the_page(tmp_path, f"{values}.map(words.duration)") == [duration(value) for value in values]


@needs_node
def test_the_page_has_the_same_names_of_metrics(tmp_path: Path) -> None:
    names = ["ne", "auc", "logloss", "calibration", "pr_auc", "lift", "calibration_error"]
    names += ["ne/bought", "pr_auc/a/b"]
    assert _of_the_page(tmp_path, f"{names}.map(words.metricName)") == [metric_name(name) for name in names]
    assert metric_name("pr_auc") == "PR-AUC"
    assert metric_name("pr_auc/a/b") == "PR-AUC of a/b"


@needs_node
def test_the_page_has_the_same_numbers(tmp_path: Path) -> None:
    values = [0.81234, 0.0, 12_345.678, -3.26]
    for digits in (0, 1, 4):
        shown = _of_the_page(tmp_path, f"{values}.map((value) => words.number(value, {digits}))")
        assert shown == [number(value, digits) for value in values]


@needs_node
def test_the_axes_of_the_page_are_those_of_the_pictures(tmp_path: Path) -> None:
    values = [0, 1, 500, 1000, 25_000, 71_500, 1_500_000, 2_000_000_000]
    shown = _of_the_page(tmp_path, f"{values}.map(words.mark)")
    assert shown == [EngFormatter()(value).strip() for value in values]
    assert shown[4:7] == ["25 k", "71.5 k", "1.5 M"]
