"""A report in a notebook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.rendering import notebook
from shadowsync.pipeline.report.rendering.notebook import FolderReport

from ..conftest import altered


def shown_of(report: Report) -> str:
    """What a notebook shows of it."""
    return FolderReport.of(report, Path("runs/demo"))._repr_html_()


def test_it_has_headline_curves_and_ledger(full_report: Report) -> None:
    shown = shown_of(full_report)
    assert "held-out examples" in shown
    assert len(re.findall(r'<img alt="\w+\.png" width="440" src="data:image/png;base64,\w', shown)) == 3
    for identity in full_report.ledger.identities:
        assert identity.name in shown
    assert "<script" not in shown


def test_a_broken_ledger_is_red(red_report: Report, full_report: Report) -> None:
    assert 'style="color:red">The ledger DOES NOT ADD UP' in shown_of(red_report)
    assert "color:red" not in shown_of(full_report)


def test_names_are_escaped(full_report: Report) -> None:
    shown = shown_of(altered(full_report, run="<b>$x$", warnings=["a < b"]))
    assert "&lt;b&gt;&#36;x&#36;" in shown
    assert "a &lt; b" in shown


def test_without_matplotlib_it_says_how_to_have_curves(
    full_report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "missing_modules", lambda _extra: ["matplotlib"])
    shown = shown_of(full_report)
    assert "pip install" in shown
    assert "<img" not in shown


def test_it_is_the_report_and_knows_its_folder(full_report: Report) -> None:
    shown = FolderReport.of(full_report, Path("runs/demo"))
    assert shown.folder == Path("runs/demo")
    assert shown.model_dump() == full_report.model_dump()
    assert full_report.folder is None
